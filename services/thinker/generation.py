"""A prompt on its way into a slot, and the reply to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from antiphon.errors import Internal
from services.lm.slots import Claim, Content, Kept, Tapped, join_tapped
from services.text.stopping import ReplyText
from services.thinker.audio import AudioFeatures
from services.thinker.model import Fed, ThinkerFeed
from services.thinker.prompt import PreparedPrompt

EncodeAudio = Callable[[AudioFeatures], torch.Tensor]


class SlotGeneration:
    """What the model has done and has still to do for one segment.

    `length` counts the positions that the slot holds: those of the prompt, of which
    the first `reused` were there before, then those of the reply but its latest id.
    """

    def __init__(
        self,
        prompt: PreparedPrompt,
        reply: ReplyText,
        *,
        row_positions: npt.NDArray[np.intp],
        audio_id: int,
    ) -> None:
        """`row_positions` are those of the prompt whose hidden rows are collected."""
        self.prompt = prompt
        self.reply = reply
        self.row_positions = row_positions
        self.content = prompt_content(prompt.ids, audio_id, prompt.audio)
        self.slot: int | None = None
        self.length = 0
        self.reused = 0
        self._audio_positions = np.flatnonzero(prompt.ids == audio_id)
        self._encoded: torch.Tensor | None = None
        self._tapped: list[Tapped] = []

    @property
    def remaining(self) -> int:
        """Prompt positions that are still to be prefilled; 0 when the reply has begun."""
        return max(len(self.prompt.ids) - self.length, 0)

    @property
    def must_encode(self) -> bool:
        """Whether recordings must be encoded before more of the prompt can be fed."""
        positions = self._audio_positions
        return self._encoded is None and len(positions) > 0 and positions[-1] >= self.length

    def place(self, claim: Claim) -> None:
        """Take the slot, with what is in it already."""
        self.slot = claim.slot
        self.length = self.reused = claim.reused
        if claim.tapped is not None:
            self._tapped.append(claim.tapped)

    def encode(self, encode_audio: EncodeAudio) -> None:
        """Encode the prompt's recordings, all of them: their chunks are padded alike."""
        if self.prompt.audio is not None:
            self._encoded = encode_audio(self.prompt.audio)

    def prompt_feed(self, count: int) -> ThinkerFeed:
        """The next `count` positions of the prompt."""
        start, end = self.length, self.length + count
        tapped = self._row_positions(start, end) - start
        audio = None
        if self._encoded is not None:
            first, last = np.searchsorted(self._audio_positions, (start, end))
            audio = self._encoded[first:last]
        sampled = end == len(self.prompt.ids)
        return ThinkerFeed(self._slot(), start, self.prompt.ids[start:end], tapped, sampled, audio)

    def reply_feed(self) -> ThinkerFeed:
        """The reply's latest id."""
        latest = np.asarray(self.reply.ids[-1:], dtype=np.int32)
        return ThinkerFeed(
            self._slot(), self.length, latest, np.empty(0, dtype=np.intp), sampled=True
        )

    def take(self, feed: ThinkerFeed, fed: Fed) -> None:
        """Take note of what was fed."""
        if self.remaining:
            positions = self._row_positions(self.length, feed.span.end)
            self._tapped.append(Tapped(positions, fed.rows))
        self.length = feed.span.end
        if not self.remaining:
            self._encoded = None

    def tapped(self) -> Tapped:
        """The hidden rows of all `row_positions`, once the prompt was prefilled."""
        self._tapped = [join_tapped(self._tapped)]
        return self._tapped[0]

    def kept(self) -> Kept:
        """What the slot holds now, once the prompt was prefilled."""
        content = np.concatenate([self.content, self.reply.ids]).astype(np.int64)
        return Kept(content[: self.length], len(self.prompt.ids), self.tapped())

    def history(self, device: torch.device) -> torch.Tensor:
        """All ids so far, int64 [n]: what a repetition penalty applies to."""
        return torch.tensor([*self.prompt.ids.tolist(), *self.reply.ids], device=device)

    def _row_positions(self, start: int, end: int) -> npt.NDArray[np.intp]:
        """Those within a range of positions."""
        first, last = np.searchsorted(self.row_positions, (start, end))
        return self.row_positions[first:last]

    def _slot(self) -> int:
        """The slot. Raises `Internal` before `place`."""
        if self.slot is None:
            raise Internal("a prompt is fed before it has a slot")
        return self.slot


def prompt_content(
    ids: npt.NDArray[np.int32], audio_id: int, audio: AudioFeatures | None
) -> Content:
    """The content of a prompt's positions; digests are negative, as no id is."""
    content = ids.astype(np.int64)
    if audio is not None:
        content[ids == audio_id] = np.repeat(np.asarray(audio.digests), audio.positions)
    return content
