import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.errors import FailedPrecondition
from antiphon.values.segment import FinishReason
from antiphon_testkit.conversations import conversation
from antiphon_testkit.margins import MIN_MARGIN
from antiphon_testkit.qwen2_5_omni.reference import Omni25Case, Omni25Output, Omni25Reference
from antiphon_testkit.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint
from antiphon_testkit.qwen2_5_omni.tiny_config import VOICES
from antiphon_testkit.qwen2_5_omni.tiny_shape import TinyOmni25Shape

torch.set_num_threads(1)
PROMPTS = ("Tell me about water.", "Count the days", "find the number")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("omni25") / "checkpoint"
    build_tiny_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def reference(directory: Path) -> Omni25Reference:
    return Omni25Reference(directory)


@pytest.fixture(scope="module")
def outputs(reference: Omni25Reference) -> list[Omni25Output]:
    return [reference.run(Omni25Case(conversation(("user", each)))) for each in PROMPTS]


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
        "spk_dict.pt",
    }
    assert len(list(directory.glob("model-*.safetensors"))) > 2
    assert sum(path.stat().st_size for path in directory.iterdir()) < 8e6
    thinker = json.loads((directory / "config.json").read_text())["thinker_config"]
    assert isinstance(thinker["vision_start_token_id"], int)


def test_checkpoint_is_the_same_when_the_seed_is(directory: Path, tmp_path: Path) -> None:
    build_tiny_checkpoint(tmp_path / "again")
    build_tiny_checkpoint(tmp_path / "other", seed=1)

    def digests(folder: Path) -> dict[str, str]:
        kept = [*folder.glob("*.safetensors"), folder / "spk_dict.pt", folder / "config.json"]
        return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in kept}

    first, again, other = (
        digests(each) for each in (directory, tmp_path / "again", tmp_path / "other")
    )
    assert again == first
    assert other.keys() == first.keys()
    assert {name for name in first if other[name] == first[name]} == {"config.json"}


def test_build_is_refused_when_the_directory_is_full(directory: Path) -> None:
    with pytest.raises(FailedPrecondition, match="not an empty directory"):
        build_tiny_checkpoint(directory)


def test_voices_load_without_code_when_only_weights_are_allowed(directory: Path) -> None:
    voices = torch.load(directory / "spk_dict.pt", weights_only=True)
    assert tuple(voices) == VOICES
    assert len({each["bos_token"] for each in voices.values()}) == len(VOICES)
    for each in voices.values():
        assert isinstance(each["bos_token"], int)
        assert each["cond"].shape == (1, 24)
        assert each["ref_mel"].shape == (1, 30, 80)


def test_reference_replies_and_speaks_when_asked(outputs: list[Omni25Output]) -> None:
    for output in outputs:
        assert output.margin >= MIN_MARGIN
        assert len(output.waveform) == 480 * len(output.codes)
        assert 0.01 < np.abs(output.waveform).max() < 1.0
        assert len(output.codes) > 20
    assert len({tuple(each.codes.tolist()) for each in outputs}) == len(outputs)
    assert FinishReason.STOP in {each.text_finish for each in outputs}
    assert {len(each.drawn) - len(each.codes) for each in outputs} == {0, 1}


def test_voices_differ_and_so_does_noise_when_speaking(reference: Omni25Reference) -> None:
    def speak(voice: str, seed: int) -> Omni25Output:
        asked = conversation(("user", PROMPTS[0]))
        return reference.run(Omni25Case(asked, voice, talker_max_tokens=20, seed=seed))

    first, again, other_noise = speak("Chelsie", 0), speak("Chelsie", 0), speak("Chelsie", 1)
    assert np.array_equal(first.waveform, again.waveform)
    assert np.array_equal(first.codes, other_noise.codes)
    assert np.abs(first.waveform - other_noise.waveform).max() > 0.01
    assert not np.array_equal(speak("Ethan", 0).codes, first.codes)


def test_plain_call_still_speaks_without_the_codec_start(
    directory: Path, reference: Omni25Reference, outputs: list[Omni25Output]
) -> None:
    """When this fails, transformers hands the talker its mask: then `_keep_mask` can go."""
    plain = Omni25Reference(directory, mask_kept=False)
    for prompt, right in zip(PROMPTS, outputs, strict=True):
        wrong = plain.run(Omni25Case(conversation(("user", prompt))))
        assert np.array_equal(wrong.text_ids, right.text_ids)
        assert not np.array_equal(wrong.drawn, right.drawn)


def test_plain_call_of_a_padded_prompt_speaks_as_the_reference_does(
    directory: Path, outputs: list[Omni25Output], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Omni25Reference(directory, mask_kept=False)
    unpadded = plain.inputs

    def padded(*given: Any) -> dict[str, torch.Tensor]:
        inputs = unpadded(*given)
        pad = {"input_ids": plain.tokenizer.pad_token_id, "attention_mask": 0}
        return {
            name: torch.cat((torch.full((1, 1), pad[name]), each), dim=1)
            for name, each in inputs.items()
        }

    monkeypatch.setattr(plain, "inputs", padded)
    for prompt, right in zip(PROMPTS, outputs, strict=True):
        output = plain.run(Omni25Case(conversation(("user", prompt))))
        assert np.array_equal(output.text_ids, right.text_ids)
        assert np.array_equal(output.drawn, right.drawn)


def test_reference_hears_when_the_user_speaks(reference: Omni25Reference) -> None:
    generator = np.random.default_rng(0)
    sound = generator.normal(0, 0.1, 24_000).astype(np.float32)
    output = reference.run(Omni25Case(conversation(("user", [sound, "Hello"]))))
    audio = reference.model.config.thinker_config.audio_token_index
    where = np.flatnonzero(output.prompt_ids == audio)
    assert len(where) == 37
    assert output.talker_input is not None
    assert len(output.talker_input.rows) == len(output.prompt_ids) + 2
    assert len(output.codes)


def test_reference_raises_when_a_talker_id_has_no_decoder_row(tmp_path: Path) -> None:
    shape = TinyOmni25Shape(stray_codes=True)
    build_tiny_checkpoint(tmp_path / "stray", shape)
    with pytest.raises(IndexError):
        Omni25Reference(tmp_path / "stray").run(Omni25Case(conversation(("user", PROMPTS[0]))))
