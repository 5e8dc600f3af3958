"""Releases by the names and shapes of their tensors, without their weights.

`released/NAME.txt` has a line for each tensor, or for each of a range: `layers.[0-47].norm.weight
2048`. Its comments state the source. `write_release` makes files of them that have the size of the
release and take no room: everything behind their headers is a hole.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import Qwen2_5OmniConfig, Qwen3OmniMoeConfig

FOLDER = Path(__file__).with_name("released")
RELEASED_CONFIG = Path(__file__).with_name("released_qwen3_omni.json")
SHARD_BYTES = 4_000_000_000
_RANGE = re.compile(r"\[(\d+)-(\d+)\]")

Shapes = dict[str, tuple[int, ...]]


def released(name: str) -> Shapes:
    """The shapes of a release's tensors, by their names."""
    found: Shapes = {}
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern, *shape = line.split()
            found |= dict.fromkeys(_named(pattern), tuple(map(int, shape)))
    return found


def _named(pattern: str) -> Iterator[str]:
    texts = _RANGE.split(pattern)
    ranges = [
        range(int(first), int(last) + 1)
        for first, last in zip(texts[1::3], texts[2::3], strict=True)
    ]
    for numbers in itertools.product(*ranges):
        parts = zip(texts[::3], (*map(str, numbers), ""), strict=True)
        yield "".join(itertools.chain.from_iterable(parts))


def write_release(folder: Path, shapes: Mapping[str, Sequence[int]]) -> None:
    """Write bfloat16 tensors with these shapes, in shards that an index lists."""
    shards: list[dict[str, Any]] = []
    end = SHARD_BYTES
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        if end + size > SHARD_BYTES:
            shards.append({})
            end = 0
        offsets = [end, end := end + size]
        shards[-1][name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": offsets}
    files: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        header = json.dumps(tensors).encode()
        header += b" " * (-len(header) % 8)
        with (folder / file).open("wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            out.truncate(out.tell() + max(each["data_offsets"][1] for each in tensors.values()))
        files |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def omni3_config() -> Any:
    """The configuration of Qwen3-Omni-30B-A3B-Instruct."""
    return Qwen3OmniMoeConfig.from_dict(json.loads(RELEASED_CONFIG.read_text()))


_TEXT_3B = {
    "hidden_size": 2048,
    "intermediate_size": 11_008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
}
"""What Qwen2.5-Omni-3B's language model has in place of the 7B's sizes, transformers' defaults."""
_TALKERS = {
    "7b": {
        "hidden_size": 896,
        "intermediate_size": 18_944,
        "num_hidden_layers": 24,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 128,
    },
    "3b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
}


def omni25_config(size: str) -> Any:
    """The configuration of Qwen2.5-Omni-7B or -3B ("7b", "3b"), as far as it makes shapes."""
    config = Qwen2_5OmniConfig()
    thinker, talker = config.thinker_config, config.talker_config
    _set(thinker.text_config, _TEXT_3B if size == "3b" else {})
    width = thinker.text_config.hidden_size
    thinker.audio_config.output_dim = thinker.vision_config.out_hidden_size = width
    thinker.vision_config.hidden_size = 1280
    _set(talker, _TALKERS[size] | {"embedding_size": width})
    return config


def _set(config: Any, changes: Mapping[str, int]) -> None:
    for name, value in changes.items():
        setattr(config, name, value)
    config.layer_types = ["full_attention"] * config.num_hidden_layers
