import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer, Qwen3OmniMoeForConditionalGeneration

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.files import read_config
from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon.values.segment import FinishReason
from antiphon_testkit.conversations import conversation
from antiphon_testkit.mimo_audio.tiny_checkpoint import COMMAND as MIMO_COMMAND
from antiphon_testkit.qwen3_omni.reference import Case, Reference, ReferenceOutput
from antiphon_testkit.qwen3_omni.tiny_checkpoint import (
    COMMAND,
    OTHER,
    SMALL,
    VOICES,
    TinyShape,
    build_tiny_checkpoint,
)

torch.set_num_threads(1)
PRESETS = {"small": SMALL, "other": OTHER}
PROMPTS = ("Hello", "Tell me about water.", "Count the days", "find the number")


def stored_tensors(directory: Path) -> dict[str, torch.Tensor]:
    tensors = {}
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return tensors


@pytest.fixture(scope="module", params=PRESETS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / "checkpoint"
    build_tiny_checkpoint(path, PRESETS[request.param])
    return path


@pytest.fixture(scope="module")
def reference(directory: Path) -> Reference:
    return Reference(directory)


@pytest.fixture(scope="module")
def outputs(reference: Reference) -> list[ReferenceOutput]:
    return [
        reference.run(Case(conversation(("user", prompt)), talker_max_tokens=41))
        for prompt in PROMPTS
    ]


def test_checkpoint_has_every_file_of_a_released_one_when_built(directory: Path) -> None:
    names = {path.name for path in directory.iterdir()}
    assert names >= {
        "config.json",
        "generation_config.json",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "model.safetensors.index.json",
    }
    assert len(list(directory.glob("model-*.safetensors"))) > 2
    assert sum(path.stat().st_size for path in directory.iterdir()) < 8e6
    assert read_config(directory)["architectures"] == ["Qwen3OmniMoeForConditionalGeneration"]


def test_checkpoint_stores_one_tensor_per_expert_when_built(directory: Path) -> None:
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    for part in ("thinker", "talker"):
        assert f"{part}.model.layers.0.mlp.experts.0.gate_proj.weight" in index
        assert f"{part}.model.layers.0.mlp.experts.gate_up_proj" not in index


def test_checkpoint_round_trips_when_loaded_by_from_pretrained(
    reference: Reference, directory: Path, tmp_path: Path
) -> None:
    _, report = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        directory, output_loading_info=True
    )
    assert not any(report.values()), report
    reference.model.save_pretrained(tmp_path)
    first, second = stored_tensors(directory), stored_tensors(tmp_path)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_checkpoint_has_no_dead_tensor_when_built(directory: Path) -> None:
    for name, tensor in stored_tensors(directory).items():
        assert torch.isfinite(tensor).all(), name
        assert tensor.abs().mean() > 0.01, name


def test_checkpoint_is_the_same_when_the_seed_is(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        build_tiny_checkpoint(tmp_path / name, SMALL, seed)
    first, same, other = (stored_tensors(tmp_path / name) for name in "abc")
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_checkpoint_ids_lie_within_their_vocabularies_when_read_from_config(
    directory: Path,
) -> None:
    config = read_config(directory)
    ids = dataclasses.astuple(SpecialIds.from_config(config))
    vocabulary = config["thinker_config"]["text_config"]["vocab_size"]
    assert len(set(ids)) == len(ids)
    assert max(ids) < vocabulary <= 1000
    talker = config["talker_config"]
    codes = config["code2wav_config"]["codebook_size"]
    special = [value for name, value in talker.items() if name.startswith("codec_")]
    special += talker["speaker_id"].values()
    assert len(set(special)) == 6 + len(VOICES)
    last_1024 = range(talker["text_config"]["vocab_size"] - 1024, vocabulary + codes + 1024)
    assert codes <= last_1024.start
    assert all(each in last_1024 for each in special)


def test_tokenizer_restores_text_when_it_holds_any_byte(directory: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    for text in ("".join(map(chr, range(128))), "né 你好 😀 ￿ Ω", " two  spaces\n\n\tEnd."):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len({tokenizer.convert_tokens_to_ids(each) for each in VOICES}) == 1


def test_tokenizer_hides_special_tokens_when_asked_to_skip_them(directory: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids = tokenizer("<|im_start|>user\nHi<tts_pad><|audio_pad|><think><|im_end|>")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "user\nHi<think>"


def test_chat_template_follows_qwen_when_a_message_has_parts(directory: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    messages = [
        {"role": "system", "content": "Be a user."},
        {"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": "What?"}]},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe a user.<|im_end|>\n"
        "<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|>What?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    special = SpecialIds.from_config(read_config(directory))
    ids = tokenizer(text)["input_ids"]
    starts = [at for at, each in enumerate(ids) if each == special.im_start]
    roles = [ids[at + 1] for at in starts]
    assert roles[1:] == [special.user, special.assistant]
    assert len(ids) - starts[-1] == 3
    assert special.audio in ids


def test_replies_end_by_themselves_when_prompts_vary(outputs: list[ReferenceOutput]) -> None:
    assert sum(each.text_finish is FinishReason.STOP for each in outputs) >= 3
    assert len({each.text_ids.tobytes() for each in outputs}) == len(outputs)
    assert all(len(each.text_ids) >= 2 for each in outputs)


def test_speech_ends_and_does_not_repeat_one_code_when_prompts_vary(
    outputs: list[ReferenceOutput],
) -> None:
    assert any(each.audio_finish is FinishReason.STOP for each in outputs)
    for each in outputs:
        distinct = [len(set(group)) for group in each.codes.T.tolist()]
        assert min(distinct) > 0.4 * len(each.codes)
    assert max(len(each.codes) for each in outputs) >= 20


def test_neither_text_nor_speech_ends_when_both_are_endless(tmp_path: Path) -> None:
    build_tiny_checkpoint(tmp_path / "tiny", TinyShape(endless_text=True, endless_speech=True))
    case = Case(conversation(("user", "Hello")), thinker_max_tokens=300, talker_max_tokens=150)
    output = Reference(tmp_path / "tiny").run(case)
    assert (output.text_finish, len(output.text_ids)) == (FinishReason.LENGTH, 300)
    assert (output.audio_finish, len(output.codes)) == (FinishReason.LENGTH, 149)


def test_speech_depends_on_the_voice_when_all_else_is_equal(reference: Reference) -> None:
    case = Case(conversation(("user", "Hello")), talker_max_tokens=8)
    codes = [reference.run(dataclasses.replace(case, voice=voice)).codes for voice in VOICES]
    assert len({each.tobytes() for each in codes}) == len(VOICES)


def test_audio_is_audible_and_not_saturated_when_decoded(outputs: list[ReferenceOutput]) -> None:
    samples = np.concatenate([each.waveform for each in outputs])
    assert 0.05 < np.sqrt(np.mean(samples**2)) < 0.3
    assert np.mean(np.abs(samples) > 0.9) < 0.001


def test_decoder_window_matters_when_frames_exceed_it(tmp_path: Path) -> None:
    build_tiny_checkpoint(tmp_path / "narrow", OTHER)
    build_tiny_checkpoint(tmp_path / "wide", dataclasses.replace(OTHER, decoder_window=72))
    generator = torch.Generator().manual_seed(0)
    shape = (1, OTHER.code_groups, 20)
    codes = torch.randint(OTHER.codebook_size, shape, generator=generator)
    with torch.no_grad():
        narrow, wide = (
            Reference(tmp_path / name).model.code2wav(codes) for name in ("narrow", "wide")
        )
    inside = 1920 * OTHER.decoder_window - 555
    assert torch.allclose(narrow[..., :inside], wide[..., :inside], atol=1e-5)
    assert (narrow - wide).abs().max() > 0.01


def test_build_refuses_when_the_directory_holds_something(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    with pytest.raises(FailedPrecondition, match="not an empty directory"):
        build_tiny_checkpoint(tmp_path)
    assert (tmp_path / "note").read_text() == "mine"


@pytest.mark.parametrize(
    "sizes",
    [
        {"layers": 0},
        {"kv_heads": 4},
        {"head_dim": 15},
        {"accept_layer": 3},
        {"experts_per_token": 8},
        {"talker_experts_per_token": 6},
        {"decoder_dim": 40},
        {"decoder_heads": 32},
        {"code_groups": 1},
    ],
)
def test_shape_is_refused_when_sizes_do_not_fit(sizes: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        dataclasses.replace(SMALL, **sizes)
    assert refusal.value.field


def test_command_builds_the_given_sizes_when_options_are_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "made"
    command = [str(directory), "--hidden", "32", "--code-groups", "3", "--accept-layer", "1"]
    assert COMMAND.run(command) == 0
    config = read_config(directory)
    assert config["thinker_config"]["text_config"]["hidden_size"] == 32
    assert config["talker_config"]["accept_hidden_layer"] == 1
    assert config["code2wav_config"]["num_quantizers"] == 3
    assert COMMAND.run(command) == 1
    assert "not an empty directory" in capsys.readouterr().err
    assert COMMAND.run([*command, "--force", "--code-groups", "5"]) == 0
    assert read_config(directory)["talker_config"]["num_code_groups"] == 5


def test_command_deletes_nothing_when_forced_on_another_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "note").write_text("mine")
    assert COMMAND.run([str(tmp_path), "--force"]) == 1
    assert "is no checkpoint" in capsys.readouterr().err
    assert (tmp_path / "note").read_text() == "mine"


def test_command_explains_when_sizes_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert COMMAND.run([str(tmp_path / "made"), "--accept-layer", "9"]) == 1
    assert capsys.readouterr().err.strip().endswith("accept_layer: must be below layers")
    assert not (tmp_path / "made").exists()


def test_presets_differ_when_compared_part_by_part() -> None:
    same = {
        field.name
        for field in dataclasses.fields(TinyShape)
        if getattr(SMALL, field.name) == getattr(OTHER, field.name)
    }
    alike = {"vision_hidden", "vision_layers", "vision_heads", "decoder_kv_heads"}
    assert not same - alike - {"endless_text", "endless_speech", "speaks"}


def test_command_replaces_a_checkpoint_of_two_directories_when_forced(tmp_path: Path) -> None:
    directory = tmp_path / "made"
    assert MIMO_COMMAND.run([str(directory)]) == 0
    assert MIMO_COMMAND.run([str(directory)]) == 1
    assert MIMO_COMMAND.run([str(directory), "--force", "--preset", "widths"]) == 0
    (directory / "note").write_text("mine")
    assert MIMO_COMMAND.run([str(directory), "--force"]) == 1
    assert (directory / "note").read_text() == "mine"
