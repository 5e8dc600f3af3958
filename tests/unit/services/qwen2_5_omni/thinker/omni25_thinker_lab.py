"""Conversations for Qwen2.5-Omni's thinker, and what Hugging Face makes of them."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from antiphon.pipelines.qwen2_5_omni import PROMPT, TOKENS
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.conversation import Conversation, to_tensors
from antiphon.values.segment import FinishReason
from antiphon_services.thinker.loading import DEFAULT_SAMPLING
from antiphon_testkit.conversations import Pixels, conversation
from antiphon_testkit.drive_engine import SegmentOutput
from antiphon_testkit.margins import MIN_MARGIN
from antiphon_testkit.qwen2_5_omni.reference import Omni25Case, Omni25Output, Omni25Reference

TEXT = "text"
SPOKEN = frozenset({TEXT, PROMPT, TOKENS})
MAX_TOKENS = 24


def recording(seconds: float, seed: int = 0) -> npt.NDArray[np.float32]:
    """Noise over a tone, float32 mono at 16 kHz."""
    count = round(seconds * 16000)
    noise = np.random.default_rng(seed).standard_normal(count) * 0.05
    tone = np.sin(np.arange(count) * (0.03 + 0.01 * seed)) * 0.3
    return (noise + tone).astype(np.float32)


def picture(width: int, height: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def png(pixels: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


WIDE, HIGH, SMALL = picture(160, 96), picture(60, 140, 1), picture(64, 64, 2)

CONVERSATIONS: dict[str, tuple[Conversation, tuple[Pixels, ...]]] = {
    "text": (conversation(("user", "Hello")), ()),
    "other text": (conversation(("system", "Sing."), ("user", "你好。é 😀 \n\n  the weather")), ()),
    "turns": (
        conversation(
            ("system", "You are the voice."),
            ("user", "How many people?"),
            ("assistant", "Two people"),
            ("user", "What is the time"),
        ),
        (),
    ),
    "recording": (conversation(("user", [recording(1.3), "What is that?"])), ()),
    "recordings": (
        conversation(
            ("user", ["Hear", recording(2.01, 1), "and", recording(4.7, 2)]),
            ("assistant", "Yes"),
            ("user", recording(0.31, 3)),
        ),
        (),
    ),
    "image": (conversation(("user", ["Look:", png(WIDE), "So?"])), (WIDE,)),
    "images": (
        conversation(
            ("user", [png(WIDE), png(SMALL), "and", png(HIGH)]),
            ("assistant", "Three."),
            ("user", [png(SMALL), "again"]),
        ),
        (WIDE, SMALL, HIGH, SMALL),
    ),
    "all": (
        conversation(
            ("user", ["See", png(HIGH), "hear", recording(2.5, 4), "and", png(SMALL)]),
            ("assistant", "I do."),
            ("user", [recording(0.6, 5), "then?"]),
        ),
        (HIGH, SMALL),
    ),
}


@dataclass(frozen=True)
class Answer:
    """Hugging Face's answer: greedy ids, and the rows that its talker was given."""

    asked: Conversation
    truth: Omni25Output

    @property
    def prompt_rows(self) -> npt.NDArray[np.float32]:
        assert self.truth.talker_input is not None
        return self.truth.talker_input.rows[:-2]

    @property
    def reply_rows(self) -> npt.NDArray[np.float32]:
        """Of all ids but the last."""
        told = self.truth.talker_input
        assert told is not None
        return np.concatenate((told.rows[-1:], told.reply[:-2]))


def answer(
    reference: Omni25Reference,
    asked: Conversation,
    images: tuple[Pixels, ...] = (),
    max_tokens: int = MAX_TOKENS,
    **more: Any,
) -> Answer:
    """What Hugging Face says, by choices that rounding cannot change."""
    case = Omni25Case(
        asked,
        thinker_max_tokens=max_tokens,
        talker_max_tokens=2,
        waveform=False,
        images=images,
        **more,
    )
    truth = reference.run(case)
    assert truth.margin >= MIN_MARGIN
    return Answer(asked, truth)


def logits_of(reference: Omni25Reference, asked: Conversation, max_tokens: int) -> torch.Tensor:
    """Of each id that Hugging Face draws greedily, [n, vocabulary]."""
    out = reference.model.thinker.generate(
        **reference.inputs(asked),
        max_new_tokens=max_tokens,
        eos_token_id=reference.stop_id,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return torch.cat(out.logits)


def segment(
    asked: Conversation, *, outputs: frozenset[str] = SPOKEN, **sampling: Any
) -> tuple[SegmentSettings, list[InputChunk]]:
    """Settings (greedy unless told otherwise) and the one input chunk."""
    settings = replace(DEFAULT_SAMPLING, **{"max_tokens": MAX_TOKENS, **sampling})
    chunk = InputChunk(
        "input", 0, to_tensors(asked), segment_finished=True, finish_reason=FinishReason.STOP
    )
    return SegmentSettings("", settings, outputs), [chunk]


def ids_of(output: SegmentOutput) -> list[int]:
    assert output.failed is None, output.failed
    ids: list[int] = output.tensors(TEXT)["ids"].tolist()
    return ids


def rows_of(output: SegmentOutput, edge: str) -> npt.NDArray[np.float32]:
    """All rows of an edge, which come in order and without a gap."""
    pieces = [each for each in output.emitted if each.edge == edge]
    counts = [len(each.tensors.get("rows", ())) for each in pieces]
    told = [at for at, each in enumerate(pieces) if "rows" in each.tensors]
    starts = np.cumsum([0, *counts])
    assert [pieces[at].position for at in told] == [starts[at] for at in told]
    assert all(each.finish_reason is None for each in pieces[:-1])
    assert pieces[-1].finish_reason is not None
    rows: npt.NDArray[np.float32] = output.tensors(edge)["rows"]
    return rows


def assert_equal(output: SegmentOutput, wanted: Answer) -> None:
    """Ids and rows are those of Hugging Face."""
    assert ids_of(output) == wanted.truth.text_ids.tolist()
    assert output.tensors(PROMPT)["ids"].tolist() == wanted.truth.prompt_ids.tolist()
    assert_near(rows_of(output, PROMPT), wanted.prompt_rows)
    assert_near(rows_of(output, TOKENS), wanted.reply_rows)


def assert_near(rows: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32]) -> None:
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, wanted, rtol=0, atol=1e-5)
