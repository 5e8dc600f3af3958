import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.pipelines.files import read_config
from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon.values.conversation import Conversation
from antiphon.values.segment import FinishReason
from antiphon_testkit.conversations import conversation
from antiphon_testkit.margins import MIN_MARGIN
from antiphon_testkit.qwen3_omni.reference import Case, Reference, ReferenceOutput
from antiphon_testkit.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint

pytestmark = pytest.mark.equality
torch.set_num_threads(1)
NOISE = (0.1 * np.random.default_rng(0).standard_normal(16_000)).astype(np.float32)
TONE = (0.3 * np.sin(0.1 * np.arange(9_000))).astype(np.float32)
SPOKEN = Case(
    conversation(("system", "Be kind."), ("user", [NOISE, "What is it?"])),
    talker_max_tokens=12,
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "checkpoint"
    build_tiny_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def reference(directory: Path) -> Reference:
    return Reference(directory)


@pytest.fixture(scope="module")
def spoken(reference: Reference) -> ReferenceOutput:
    return reference.run(SPOKEN)


def top_gap(logits: torch.Tensor) -> float:
    top = logits.topk(2).values
    return float((top[..., 0] - top[..., 1]).min())


def test_reference_equals_plain_generate_when_nothing_listens(
    reference: Reference, spoken: ReferenceOutput
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        ids, waveform = reference.model.generate(
            **reference.inputs(SPOKEN.conversation),
            thinker_do_sample=False,
            talker_do_sample=False,
            thinker_eos_token_id=reference.model.config.im_end_token_id,
            thinker_max_new_tokens=SPOKEN.thinker_max_tokens,
            talker_max_new_tokens=SPOKEN.talker_max_tokens,
            speaker=SPOKEN.voice,
        )
    assert ids[0].tolist() == [*spoken.prompt_ids, *spoken.text_ids]
    assert np.array_equal(waveform.flatten().numpy(), spoken.waveform)


def test_reference_counts_agree_when_speech_is_cut_by_the_limit(spoken: ReferenceOutput) -> None:
    assert spoken.audio_finish is FinishReason.LENGTH
    assert spoken.codes.shape == (SPOKEN.talker_max_tokens - 1, 4)
    assert spoken.codes.dtype == np.int32
    assert spoken.waveform.shape == (1920 * len(spoken.codes) - 555,)
    assert spoken.waveform.dtype == np.float32
    assert spoken.text_finish is FinishReason.STOP


def test_reference_margins_equal_one_forward_when_computed_again(
    reference: Reference, spoken: ReferenceOutput
) -> None:
    inputs = reference.inputs(SPOKEN.conversation)
    prompt_length = inputs["input_ids"].shape[1]
    ids = torch.tensor([[*spoken.prompt_ids, *spoken.text_ids[:-1]]])
    inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        output: Any = reference.model.thinker(**inputs, output_router_logits=True)
    logits = output.logits[0, prompt_length - 1 :]
    assert logits.argmax(-1).tolist() == spoken.text_ids.tolist()
    assert top_gap(logits) == pytest.approx(spoken.margins.thinker, abs=1e-4)
    config = reference.model.config.thinker_config.text_config
    top = torch.cat(output.router_logits).topk(config.num_experts_per_tok + 1).values
    narrowest = float((top[:, -2] - top[:, -1]).min())
    text_only = reference.run(Case(SPOKEN.conversation, audio=False))
    assert text_only.margins.router == pytest.approx(narrowest, abs=1e-4)
    assert spoken.margins.router <= text_only.margins.router


def test_reference_margins_are_finite_when_speech_is_made(spoken: ReferenceOutput) -> None:
    margins = spoken.margins
    each = (margins.thinker, margins.talker, margins.predictor, margins.router)
    assert all(np.isfinite(each))
    assert spoken.min_margin == min(each) > MIN_MARGIN


def test_reference_makes_no_audio_when_only_text_is_wanted(
    reference: Reference, spoken: ReferenceOutput
) -> None:
    output = reference.run(Case(SPOKEN.conversation, audio=False))
    assert np.array_equal(output.text_ids, spoken.text_ids)
    assert output.codes.shape == (0, 4)
    assert output.waveform.shape == (0,)
    assert output.audio_finish is None
    assert output.margins.talker == output.margins.predictor == np.inf


def test_reference_stops_at_the_limit_when_the_reply_is_longer(reference: Reference) -> None:
    output = reference.run(Case(SPOKEN.conversation, thinker_max_tokens=4, talker_max_tokens=4))
    assert output.text_finish is FinishReason.LENGTH
    assert len(output.text_ids) == 4
    assert len(output.codes) == 3


def test_reference_says_stop_when_the_talker_ends_by_itself(reference: Reference) -> None:
    output = reference.run(Case(conversation(("user", "Hello")), talker_max_tokens=100))
    assert output.audio_finish is FinishReason.STOP
    assert 1 < len(output.codes) < 99


def test_reference_places_one_position_per_audio_row_when_recordings_differ(
    reference: Reference, directory: Path
) -> None:
    case = conversation(("user", ["A", TONE]), ("assistant", "Yes"), ("user", [NOISE, "go"]))
    inputs = reference.inputs(case)
    ids = inputs["input_ids"][0]
    audio = SpecialIds.from_config(read_config(directory)).audio
    frames = inputs["feature_attention_mask"].sum(-1)
    with torch.no_grad():
        rows = reference.model.thinker.get_audio_features(
            inputs["input_features"], inputs["feature_attention_mask"]
        ).last_hidden_state
    assert frames.tolist() == [57, 100]
    assert int((ids == audio).sum()) == len(rows) == 8 + 13


def test_reference_hears_the_recording_when_words_are_equal(reference: Reference) -> None:
    replies = {
        reference.run(
            Case(conversation(("user", [recording, "What?"])), audio=False)
        ).text_ids.tobytes()
        for recording in (NOISE, TONE)
    }
    assert len(replies) == 2


@pytest.mark.parametrize(
    ("case", "error", "message"),
    [
        (Case(SPOKEN.conversation, thinker_max_tokens=1), RuntimeError, "must match the size"),
        (Case(SPOKEN.conversation, talker_max_tokens=1), RuntimeError, "non-empty TensorList"),
        (Case(SPOKEN.conversation, voice="nobody"), NotImplementedError, "nobody"),
        (Case(conversation(("system", "Alone."))), RuntimeError, "must match the size"),
    ],
)
def test_reference_raises_what_hugging_face_does_when_it_cannot_speak(
    reference: Reference, case: Case, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        reference.run(case)
    assert "chunked_decode" not in vars(reference.model.code2wav)


def test_conversation_numbers_recordings_when_messages_mix_them() -> None:
    made = conversation(("user", [TONE, "a", NOISE]), ("assistant", "b"), ("user", TONE))
    assert isinstance(made, Conversation)
    assert [len(each) for each in made.recordings] == [9_000, 16_000, 9_000]
    assert [len(message.parts) for message in made.messages] == [3, 1, 1]
