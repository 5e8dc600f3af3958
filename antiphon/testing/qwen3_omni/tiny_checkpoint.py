"""Writes a complete Qwen3-Omni-MoE checkpoint of a few megabytes with random weights.

Use `python -m antiphon.testing.qwen3_omni.tiny_checkpoint DIR`. Every part of the released model
is there and the files are laid out as `save_pretrained` lays them out, so it stands
in for the released one wherever no one listens to the result.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from antiphon.errors import AntiphonError, FailedPrecondition
from antiphon.runtime.checkpoint.weights import INDEX_FILE
from antiphon.testing.qwen3_omni.tiny_config import VOICES, make_config
from antiphon.testing.qwen3_omni.tiny_shape import OTHER, SMALL, TinyShape
from antiphon.testing.qwen3_omni.tiny_tokenizer import TOKENIZER, write_preprocessor

__all__ = ["OTHER", "SMALL", "VOICES", "TinyShape", "build_tiny_checkpoint"]

PRESETS = {"small": SMALL, "other": OTHER}
MAX_SHARD_BYTES = 500_000


def build_tiny_checkpoint(directory: Path, shape: TinyShape = SMALL, seed: int = 0) -> None:
    """Write a checkpoint into `directory`, which is made if it is missing.

    The same shape and seed give the same weights. Raises `FailedPrecondition` if the
    directory holds something already.
    """
    from transformers import GenerationConfig, Qwen3OmniMoeForConditionalGeneration

    from antiphon.testing.qwen3_omni.tiny_weights import fill_weights, remove_endings

    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FailedPrecondition(f"{directory}: is not an empty directory")
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = TOKENIZER.write(directory)
    write_preprocessor(directory)
    model = Qwen3OmniMoeForConditionalGeneration(make_config(shape, vocabulary))
    fill_weights(model, vocabulary.spoken(raw_bytes=shape.raw_bytes), seed)
    remove_endings(model, text=shape.endless_text, speech=shape.endless_speech)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=vocabulary.ids["<|im_end|>"], pad_token_id=vocabulary.ids["<|endoftext|>"]
    )
    model.save_pretrained(directory, max_shard_size=MAX_SHARD_BYTES)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = _make_parser()
    given = vars(parser.parse_args(arguments))
    directory, seed = Path(given.pop("directory")), given.pop("seed")
    preset, force = PRESETS[given.pop("preset")], given.pop("force")
    try:
        shape = dataclasses.replace(preset, **{k: v for k, v in given.items() if v is not None})
        if force:
            _remove_checkpoint(directory)
        build_tiny_checkpoint(directory, shape, seed)
    except (AntiphonError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    size = sum(each.stat().st_size for each in directory.iterdir())
    print(f"{directory}: {size / 1e6:.1f} MB, voices {', '.join(VOICES)}")
    return 0


def _remove_checkpoint(directory: Path) -> None:
    """Delete a checkpoint's directory; raises `FailedPrecondition` for any other that is full."""
    if not directory.is_dir() or not any(directory.iterdir()):
        return
    if not (directory / INDEX_FILE).is_file():
        raise FailedPrecondition(f"{directory}: is no checkpoint, so --force does not delete it")
    shutil.rmtree(directory)


def _make_parser() -> argparse.ArgumentParser:
    """One option per size of `TinyShape`."""
    parser = argparse.ArgumentParser(
        prog="python -m antiphon.testing.qwen3_omni.tiny_checkpoint",
        description="Write a tiny random Qwen3-Omni-MoE checkpoint for tests and trials.",
    )
    parser.add_argument("directory", metavar="DIR", help="where to write; must be empty")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: 0)")
    parser.add_argument("--preset", choices=PRESETS, default="small", help="(default: small)")
    parser.add_argument("--force", action="store_true", help="replace the checkpoint in DIR")
    sizes = parser.add_argument_group("sizes", "each replaces the preset's")
    for field in dataclasses.fields(TinyShape):
        option = f"--{field.name.replace('_', '-')}"
        default = " / ".join(f"{getattr(preset, field.name)}" for preset in PRESETS.values())
        if isinstance(field.default, bool):
            action = argparse.BooleanOptionalAction
            sizes.add_argument(option, action=action, default=None, help=f"({default})")
        else:
            sizes.add_argument(option, type=int, metavar="N", help=f"({default})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
