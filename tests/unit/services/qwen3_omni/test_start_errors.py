"""What is wrong with a checkpoint or its configuration is a sentence that names file and remedy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import AntiphonError, FailedPrecondition, InvalidArgument
from antiphon.pipelines.registry import pipeline_of
from antiphon_services.stage.loading import load_stage
from antiphon_testkit.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint

Break = Callable[[Path], object]
THINKER, TALKER, CODE2WAV = "thinker", "talker", "code2wav"
ALL = (THINKER, TALKER, CODE2WAV)
CONFIG, GENERATION, INDEX = "config.json", "generation_config.json", "model.safetensors.index.json"
EXTRACTOR, TOKENIZER = "preprocessor_config.json", "tokenizer.json"


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole") / "tiny"
    build_tiny_checkpoint(directory)
    return directory


@pytest.fixture
def broken(whole: Path, tmp_path: Path) -> Path:
    """A checkpoint that a test may break."""
    return Path(shutil.copytree(whole, tmp_path / "tiny"))


def load(role: str, directory: Path, config: StageConfig | None = None) -> object:
    """As a stage process does."""
    pipeline = pipeline_of(directory)
    return load_stage(pipeline, role, directory, config or StageConfig(slots=2))


def without(*names: str) -> Break:
    return lambda directory: [(directory / name).unlink() for name in names]


def holding(name: str, content: str) -> Break:
    return lambda directory: (directory / name).write_text(content)


def setting(path: str, value: object = None) -> Break:
    """Set a value of `config.json`, or take it away."""

    def change(directory: Path) -> None:
        file = directory / CONFIG
        config = inner = json.loads(file.read_text())
        *parts, last = path.split(".")
        for part in parts:
            inner = inner[part]
        if value is None:
            del inner[last]
        else:
            inner[last] = value
        file.write_text(json.dumps(config))

    return change


def without_shard_of(prefix: str) -> Break:
    """Remove the file that holds the first tensor of a part."""

    def change(directory: Path) -> None:
        names: dict[str, str] = json.loads((directory / INDEX).read_text())["weight_map"]
        (
            directory / next(names[name] for name in sorted(names) if name.startswith(prefix))
        ).unlink()

    return change


CASES: list[tuple[str, tuple[str, ...], Break, tuple[str, ...]]] = [
    ("config is no json", ALL, holding(CONFIG, '{"architectures": ['), (CONFIG, "get the file")),
    ("config is not an object", ALL, holding(CONFIG, "[1]"), (CONFIG, "instead of a JSON object")),
    ("config names nothing", ALL, setting("architectures", 5), (CONFIG, "architectures")),
    ("no talker_config", (THINKER, TALKER), setting("talker_config"), (CONFIG, "talker_config")),
    ("no thinker_config", (THINKER, TALKER), setting("thinker_config"), (CONFIG, "thinker_config")),
    ("no code2wav_config", (TALKER, CODE2WAV), setting("code2wav_config"),
     (CONFIG, "code2wav_config")),
    ("a part is a list", ALL, setting("talker_config", [1]), (CONFIG, "talker_config")),
    ("layers are a word", ALL, setting("thinker_config.text_config.num_hidden_layers", "many"),
     (CONFIG, "num_hidden_layers")),
    ("a negative width", (THINKER,), setting("thinker_config.text_config.hidden_size", -4),
     (CONFIG, "-4")),
    ("a negative width", (TALKER,), setting("talker_config.text_config.hidden_size", -4),
     (CONFIG, "-4")),
    ("a negative width", (CODE2WAV,), setting("code2wav_config.hidden_size", -2), (CONFIG, "-2")),
    ("another width", (THINKER,), setting("thinker_config.text_config.hidden_size", 36),
     (CONFIG, "configuration")),
    ("a layer that is not there", (THINKER,), setting("talker_config.accept_hidden_layer", 99),
     (CONFIG, "accept_hidden_layer is 99")),
    ("no special id", (THINKER, TALKER), setting("im_start_token_id"),
     (CONFIG, "im_start_token_id")),
    ("an odd voice", (TALKER,), setting("talker_config.speaker_id", {"a": "b"}),
     (CONFIG, "speaker_id")),
    ("no extractor", (THINKER,), without(EXTRACTOR), (EXTRACTOR, "missing", "get the file")),
    ("extractor is no json", (THINKER,), holding(EXTRACTOR, "{"), (EXTRACTOR, "get the file")),
    ("an odd extractor", (THINKER,), holding(EXTRACTOR, '{"feature_size": "x"}'), (EXTRACTOR,)),
    ("generation is no json", (THINKER, TALKER), holding(GENERATION, "{"), (GENERATION,)),
    ("an odd setting", (THINKER, TALKER),
     holding(GENERATION, '{"thinker_temperature": "hot", "talker_temperature": "hot"}'),
     (GENERATION, "temperature", "remove the field")),
    ("no tokenizer", (THINKER,), without(TOKENIZER, "vocab.json", "merges.txt"),
     (TOKENIZER, "missing", "get the file")),
    ("tokenizer is no json", (THINKER,), holding(TOKENIZER, "{"), (TOKENIZER, "get the file")),
    ("tokenizer without its special tokens", (THINKER,), without(TOKENIZER),
     ("warm-up prompt failed", "tokenizer")),
    ("a template that is none", (THINKER,), holding("chat_template.jinja", "{% for"),
     ("warm-up prompt failed", "chat template")),
    ("a template that hears nothing", (THINKER,), holding("chat_template.jinja", "hello"),
     ("warm-up prompt failed", "chat template")),
    ("no shard", (THINKER,), without_shard_of("thinker.model."),
     ("model-", "missing", "get the file")),
    ("no shard", (TALKER,), without_shard_of("talker."), ("model-", "missing", "get the file")),
    ("no shard", (CODE2WAV,), without_shard_of("code2wav."), ("model-", "missing", "get the file")),
    ("no index", ALL, without(INDEX), (INDEX, "get the file")),
    ("index is no json", ALL, holding(INDEX, "{"), (INDEX, "get the file")),
    ("an odd index", ALL, holding(INDEX, '{"weight_map": 5}'), (INDEX, "get the file")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("role", "breaks", "said"),
    [
        pytest.param(role, breaks, said, id=f"{role}: {name}")
        for name, roles, breaks, said in CASES
        for role in roles
    ],
)
def test_load_says_what_is_wrong_with_a_file_in_one_sentence(
    broken: Path, role: str, breaks: Break, said: tuple[str, ...]
) -> None:
    breaks(broken)
    with pytest.raises(FailedPrecondition) as raised:
        load(role, broken)
    message = raised.value.message
    assert all(word in message for word in said), message
    assert "\n" not in message
    assert "huggingface.co" not in message


@pytest.mark.parametrize("role", ALL)
def test_a_checkpoint_without_generation_config_loads_with_the_defaults(
    broken: Path, role: str
) -> None:
    (broken / GENERATION).unlink()
    assert load(role, broken) is not None


@pytest.mark.parametrize("role", ALL)
@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_cuda_on_a_build_of_torch_without_it_is_said_before_anything_is_loaded(
    whole: Path, role: str
) -> None:
    with pytest.raises(
        FailedPrecondition, match=r"built without CUDA.*set device to cpu"
    ) as raised:
        load(role, whole, StageConfig(device="cuda:0"))
    assert raised.value.field == "device"


@pytest.mark.parametrize("device", ["gpu", "cuda:x", ""])
@pytest.mark.parametrize("role", ALL)
def test_a_device_that_is_none_is_refused_by_name(whole: Path, role: str, device: str) -> None:
    with pytest.raises(InvalidArgument, match=r"device: .* use cpu") as raised:
        load(role, whole, StageConfig(device=device))
    assert raised.value.field == "device"


def test_a_directory_without_weights_is_said(broken: Path) -> None:
    for file in broken.glob("model*"):
        file.unlink()
    errors: list[Any] = []
    for role in ALL:
        with pytest.raises(AntiphonError) as raised:
            load(role, broken)
        errors.append(raised.value.message)
    assert all("model.safetensors" in each for each in errors), errors
