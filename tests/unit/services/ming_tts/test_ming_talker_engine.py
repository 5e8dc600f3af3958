"""The talker's engine: company, histories, limits, faults and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.errors import InvalidArgument
from antiphon.pipelines.ming_tts import FRAME_WIDTH, SAMPLE_RATE_HZ
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.ming_tts.talker.flow_head import FlowHead
from antiphon_testkit.drive_engine import run_segments
from tests.unit.services.ming_tts.ming_talker_lab import Asked, TalkerLab, latents_of, message

TOLERANCE = 1e-4
WARM = {"temperature": 1.0}
SOUND = np.random.default_rng(0).normal(0, 0.1, SAMPLE_RATE_HZ).astype(np.float32)
ASKED = [
    Asked(seed=1),
    Asked("a", seed=2),
    Asked("Room 42 opens at 7:30.", seed=3, changes=WARM),
    Asked(seed=4, options={"instruction": "Calm."}),
    Asked("word " * 60, seed=5, changes={"max_tokens": 9}),
    Asked(seed=6, options={"reference_audio": SOUND}),
    Asked(seed=7, options={"reference_audio": SOUND, "reference_text": "Hm."}),
    Asked(seed=8, changes={"max_tokens": 1}),
]


@pytest.fixture(scope="module", params=["windowed", "unbounded"])
def lab(request: pytest.FixtureRequest, checkpoints: dict[str, Path]) -> TalkerLab:
    return TalkerLab(checkpoints[request.param])


def test_eight_together_say_what_each_says_alone(lab: TalkerLab) -> None:
    for asked, output in zip(ASKED, lab.speak(*ASKED), strict=True):
        (alone,) = lab.speak(asked)
        together, by_itself = latents_of(output), latents_of(alone)
        assert together.shape == by_itself.shape
        np.testing.assert_allclose(together, by_itself, rtol=0, atol=TOLERANCE)
        assert output.completed is not None
        assert alone.completed is not None
        assert output.completed.finish_reason is alone.completed.finish_reason
        assert output.completed.input_positions == alone.completed.input_positions


@pytest.mark.parametrize("asked", [ASKED[0], ASKED[2], ASKED[6], ASKED[4]], ids=lambda a: a.seed)
def test_an_answer_goes_on_from_any_of_its_frames(lab: TalkerLab, asked: Asked) -> None:
    """And ends where it ended, also when all of it is known."""
    (whole,) = lab.speak(asked)
    frames = latents_of(whole)
    for known in {1, 2, len(frames) // 2, len(frames) - 1, len(frames)} - {0}:
        again = Asked(
            asked.text, asked.seed, asked.voice, asked.changes, asked.options, frames[:known]
        )
        (output,) = lab.speak(again)
        made = latents_of(output)
        assert made.shape == frames.shape
        np.testing.assert_array_equal(made[:known], frames[:known])
        np.testing.assert_allclose(made, frames, rtol=0, atol=TOLERANCE)
        assert output.completed is not None
        assert whole.completed is not None
        assert output.completed.finish_reason is whole.completed.finish_reason


def test_known_frames_of_several_parts_go_in(checkpoints: dict[str, Path]) -> None:
    """More than a part has rows, in company of a prompt."""
    lab = TalkerLab(checkpoints["windowed"])
    known = np.random.default_rng(1).normal(size=(300, FRAME_WIDTH)).astype(np.float32)
    going = Asked(seed=2, changes={"max_tokens": 302}, known=known)
    alone, _ = lab.speak(going, ASKED[4])
    (again,) = lab.speak(going)
    np.testing.assert_allclose(latents_of(alone), latents_of(again), rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(latents_of(again)[:300], known)


@pytest.mark.parametrize("most", [1, 3, 4, 5])
def test_the_last_draw_allowed_is_spoken(lab: TalkerLab, most: int) -> None:
    (whole,) = lab.speak(Asked(seed=1))
    (cut,) = lab.speak(Asked(seed=1, changes={"max_tokens": most}))
    frames = latents_of(cut)
    assert len(frames) == most
    np.testing.assert_allclose(frames, latents_of(whole)[:most], rtol=0, atol=TOLERANCE)
    assert cut.completed is not None
    assert cut.completed.finish_reason is FinishReason.LENGTH


def test_the_context_bounds_an_answer(checkpoints: dict[str, Path]) -> None:
    lab = TalkerLab(checkpoints["windowed"], limit=160)
    (output,) = lab.speak(Asked("word " * 70, seed=5))
    frames = latents_of(output)
    assert output.completed is not None
    if output.completed.finish_reason is FinishReason.LENGTH:
        assert output.completed.input_positions + len(frames) == 161
    with pytest.raises(AssertionError, match="leaves no room"):
        latents_of(lab.speak(Asked("word " * 400))[0])


def test_logits_that_are_not_finite_fail_their_segment_alone(
    checkpoints: dict[str, Path],
) -> None:
    lab = TalkerLab(checkpoints["windowed"])
    known = np.full((2, FRAME_WIDTH), 3e38, np.float32)
    broken, sound = lab.speak(Asked(seed=3, known=known), Asked(seed=1))
    assert broken.failed is not None
    expected = latents_of(lab.speak(Asked(seed=1))[0])
    np.testing.assert_allclose(latents_of(sound), expected, rtol=0, atol=TOLERANCE)


def test_bfloat16_is_near_float32(checkpoints: dict[str, Path]) -> None:
    """It is the default on a GPU. A later step depends on the latents before it, so the first ones
    are compared."""
    asked = Asked(seed=1, changes={"max_tokens": 6} | WARM)
    rounded = TalkerLab(checkpoints["windowed"], dtype="bfloat16").speak(asked, asked)
    exact = latents_of(TalkerLab(checkpoints["windowed"]).speak(asked)[0])
    for each in rounded:
        made = latents_of(each)
        assert made.shape == exact.shape
        assert np.isfinite(made).all()
        apart = np.sqrt(np.mean((made[0] - exact[0]) ** 2) / np.mean(exact[0] ** 2))
        assert apart < 0.1


def test_slots_come_back(lab: TalkerLab) -> None:
    """After an end, a release in the middle of a prompt, and one of a draw."""
    expected = latents_of(lab.speak(Asked(seed=1))[0])
    for steps in (0, 1, 3):
        keys = [SegmentKey(f"gone {index}", 0) for index in range(8)]
        for key in keys:
            lab.engine.admit(key, lab.settings(Asked(seed=1)))
            lab.engine.accept(key, message("How are you today?"))
        for _ in range(steps):
            lab.engine.step()
        for key in keys:
            lab.engine.release(key)
        np.testing.assert_allclose(
            latents_of(lab.speak(Asked(seed=1))[0]), expected, rtol=0, atol=TOLERANCE
        )


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"voice": "nobody"}, "voice"),
    ({"options": {"reference_text": "Hm."}}, "options.reference_text"),
    ({"options": {"reference_audio": SOUND[:4409]}}, "options.reference_audio"),
    ({"options": {"reference_audio": SOUND}, "voice": "灵小甄"}, "voice"),
    ({"changes": {"top_k": 5}}, "top_k"),
    ({"changes": {"top_p": 0.5}}, "top_p"),
    ({"changes": {"repetition_penalty": 1.1}}, "repetition_penalty"),
    ({"known": np.zeros((2, FRAME_WIDTH - 1), np.float32)}, "history.latents"),
    ({"known": np.full((2, FRAME_WIDTH), np.nan, np.float32)}, "history.latents"),
]


@pytest.mark.parametrize(("fields", "field"), REFUSED, ids=[each[1] for each in REFUSED])
def test_what_cannot_be_done_is_refused_by_its_field(
    fields: dict[str, Any], field: str, lab: TalkerLab
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        lab.engine.admit(SegmentKey("refused", 0), lab.settings(Asked(**fields)))
    assert caught.value.field == field


def test_more_known_frames_than_draws_are_refused(lab: TalkerLab) -> None:
    known = np.zeros((4, FRAME_WIDTH), np.float32)
    key = SegmentKey("refused", 0)
    lab.engine.admit(key, lab.settings(Asked(changes={"max_tokens": 3}, known=known)))
    with pytest.raises(InvalidArgument) as caught:
        lab.engine.accept(key, message("Hello"))
    lab.engine.release(key)
    assert caught.value.field == "history.latents"


def test_a_failed_call_is_made_again_for_each(
    lab: TalkerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the shared call loses no segment and changes no latent."""
    expected = [latents_of(each) for each in lab.speak(*ASKED[:3])]
    solve, calls = FlowHead.solve, 0

    def failing(head: FlowHead, states: torch.Tensor, *rest: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 2 and len(states) > 1:
            raise RuntimeError("the call failed")
        return solve(head, states, *rest)

    monkeypatch.setattr(FlowHead, "solve", failing)
    outputs = run_segments(
        lab.engine,
        {
            SegmentKey("asked", index): (lab.settings(each), [message(each.text)])
            for index, each in enumerate(ASKED[:3])
        },
    )
    for made, frames in zip(outputs.values(), expected, strict=True):
        np.testing.assert_allclose(latents_of(made), frames, rtol=0, atol=TOLERANCE)
