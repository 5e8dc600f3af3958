"""A prompt that is being prefilled into a slot, together with its reply."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch

from antiphon.errors import Internal
from antiphon.pipelines.media_ids import MediaIds, is_media
from antiphon.transport.device_edge import on_device
from antiphon.values.segment import FinishReason
from antiphon_services.lm.slots import MIN_REUSED, Claim, Content, Kept
from antiphon_services.text.stopping import ReplyText
from antiphon_services.thinker.audio import AudioFeatures
from antiphon_services.thinker.listening import HeardPrompt
from antiphon_services.thinker.model import ThinkerFeed
from antiphon_services.thinker.patches import VisualPatches
from antiphon_services.thinker.prompt import Ids, PreparedPrompt
from antiphon_services.thinker.reply_rows import ReplyRows
from antiphon_services.thinker.rows import no_positions
from antiphon_services.thinker.thinker_segment import Positions

Encode = Callable[[AudioFeatures | VisualPatches], torch.Tensor]


class SlotGeneration:
    """The state of one segment in the model.

    `length` is the number of positions in the slot. It includes the prompt and the reply, except
    for the latest ID of the reply. The first `reused` positions were already in the slot. The
    `known` reply IDs are prefilled after the prompt. `reply_rows` is set if the reply's rows are
    needed, and `finish` is set when the reply has ended.

    While the prompt `is_open`, more of it will arrive. `told` is the number of prompt IDs that have
    been sent.
    """

    def __init__(
        self,
        prompt: PreparedPrompt,
        reply: ReplyText,
        *,
        row_positions: Positions,
        special: MediaIds,
        every_row: bool,
        known: Sequence[int] = (),
    ) -> None:
        """Create the state. The prompt rows at `row_positions` are kept. If `every_row` is true,
        the reply's rows are kept as well.
        """
        # Patches are released one by one as they are encoded.
        self.prompt = dataclasses.replace(prompt, patches=())
        self.reply = reply
        self.row_positions = row_positions
        self.reply_rows = ReplyRows()
        self._special = special
        self._every_row = every_row
        self._feed_prompt(known)
        self.content = prompt_content(self._fed, special.audio, prompt.audio)
        self.slot: int | None = None
        self.length = 0
        self.reused = 0
        self.finish: FinishReason | None = None
        self.is_open = False
        self.told = 0
        self._rows_sent = self._known_rows_sent = 0
        self._head = 0
        self._seen: torch.Tensor | None = None
        self._media_positions = np.flatnonzero(is_media(prompt.ids, special))
        self._encoded: torch.Tensor | None = None
        self._pieces: deque[tuple[Positions, AudioFeatures | VisualPatches]] = deque()
        if prompt.audio is not None:
            heard = np.flatnonzero(prompt.ids == special.audio)
            self._pieces.append((heard[: sum(prompt.audio.positions)], prompt.audio))
        for positions, patches in zip(
            visual_positions(prompt, special), prompt.patches, strict=False
        ):
            self.content[positions] = patches.digest
            self._pieces.append((positions, patches))

    def hear(
        self, heard: HeardPrompt, row_positions: Positions, reply: Callable[[], ReplyText]
    ) -> None:
        """Extend the prompt and discard everything that is no longer valid. `reply` is called once
        the prompt is complete.
        """
        special, ids = self._special, heard.prompt.ids
        self.prompt = heard.prompt
        self.is_open = heard.is_open
        self.row_positions = row_positions
        self._feed_prompt(())
        if heard.kept < self.length:
            self.length = heard.kept
            self.reused = min(self.reused, heard.kept)
            sent = int(np.searchsorted(row_positions, heard.kept))
            self._rows_sent = min(self._rows_sent, sent)
        before, self._media_positions = (
            self._media_positions,
            np.flatnonzero(is_media(ids, special)),
        )
        if self._encoded is not None:
            rows = self._encoded.new_zeros(len(self._media_positions), self._encoded.shape[1])
            known = min(len(before), len(self._media_positions))
            rows[:known] = self._encoded[:known]
            self._encoded = rows
        self.content = np.concatenate((self.content[: heard.start], ids[heard.start :]))
        end = heard.start + heard.prompt.listened
        self.content[heard.start : end] = heard.digest
        still = [each for each in self._pieces if each[0][0] < max(heard.kept, heard.start)]
        again = [
            (np.arange(begins, begins + window.positions[0]), window)
            for begins, window in heard.windows
        ]
        self._pieces = deque((*still, *again))
        self._head = heard.start
        if not heard.is_open:
            self.reply = reply()

    def _feed_prompt(self, known: Sequence[int]) -> None:
        """Set the positions to prefill: the prompt, followed by the known part of the reply."""
        prompt, tapped = self.prompt, self.row_positions
        self._fed = np.concatenate((prompt.ids, np.asarray(known, np.int32)))
        behind = np.arange(len(prompt.ids), len(self._fed))
        self._tapped = np.concatenate((tapped, behind)) if self._every_row else tapped
        self._turned = prompt.turned
        if prompt.turned is not None:
            later = np.repeat(behind[:, None] + prompt.shift, 3, axis=1)
            self._turned = np.concatenate((prompt.turned, later))

    @property
    def remaining(self) -> int:
        """The number of positions that still have to be prefilled."""
        return max(len(self._fed) - self.length, 0)

    @property
    def replies(self) -> bool:
        """Whether the next ID of the reply has to be computed."""
        return not (self.remaining or self.is_open) and self.finish is None

    @property
    def must_encode(self) -> bool:
        """Whether media must be encoded before more of the prompt can be processed."""
        return self.to_encode > 0

    @property
    def to_encode(self) -> int:
        """The number of positions that the next media to encode take up, or 0 if there are none."""
        while self._pieces and self._pieces[0][0][-1] < self.length:
            self._pieces.popleft()
        return len(self._pieces[0][0]) if self._pieces else 0

    def place(self, claim: Claim) -> None:
        """Take over a slot. Media within the reused content don't have to be encoded."""
        self.slot = claim.slot
        self.length = self.reused = claim.reused
        self._pieces = deque(_behind(self.length, *each) for each in self._pieces)

    def encode(self, encode: Encode) -> None:
        """Encode the next media. This is either a single image or video, or all recordings of the
        prompt together, because their encodings may depend on each other.
        """
        positions, piece = self._pieces.popleft()
        made = encode(piece)
        if self._encoded is None:
            self._encoded = made.new_zeros(len(self._media_positions), made.shape[1])
        at = np.searchsorted(self._media_positions, positions)
        self._encoded[on_device(at, made.device)] = made

    def prompt_feed(self, count: int) -> ThinkerFeed:
        """Return a feed with the next `count` positions of the prompt and of the known part of the
        reply.
        """
        start, end = self.length, self.length + count
        first, last = np.searchsorted(self._tapped, (start, end))
        media = None
        if self._encoded is not None:
            media = self._encoded[slice(*np.searchsorted(self._media_positions, (start, end)))]
        return ThinkerFeed(
            self.placed(),
            start,
            self._fed[start:end],
            self._tapped[first:last] - start,
            end == len(self._fed) and not self.is_open,
            media,
            None if self._turned is None else self._turned[start:end],
        )

    def reply_feed(self) -> ThinkerFeed:
        """Return a feed with the latest ID of the reply."""
        latest = np.asarray(self.reply.ids[-1:], dtype=np.int32)
        tapped = np.zeros(1, dtype=np.intp) if self._every_row else no_positions()
        shift = self.prompt.shift
        return ThinkerFeed(self.placed(), self.length, latest, tapped, sampled=True, shift=shift)

    def take(self, feed: ThinkerFeed) -> None:
        """Record that a feed has been processed."""
        self.length = feed.span.end
        if not self.remaining:
            self._encoded = None

    @property
    def holds_rows(self) -> bool:
        """Whether rows can't be sent yet because the prompt is still growing. A talker that reads
        every row doesn't support growing prompts.
        """
        return self.is_open and self._every_row

    def rows_due(self, most: int) -> Positions:
        """Return the next prompt positions whose rows are available but haven't been sent, up to
        `most` of them.
        """
        there = int(np.searchsorted(self.row_positions, self.length))
        return self.row_positions[self._rows_sent : min(there, self._rows_sent + most)]

    def rows_sent(self, count: int) -> None:
        """Count rows as sent."""
        self._rows_sent += count

    def known_rows_due(self) -> tuple[int, Positions]:
        """Return the first known ID whose row is available but hasn't been sent, and the positions
        of all these rows.

        The rows are then considered sent.
        """
        first, prompt = self._known_rows_sent, len(self.prompt.ids)
        self._known_rows_sent = max(first, min(self.length, len(self._fed)) - prompt)
        return first, np.arange(prompt + first, prompt + self._known_rows_sent)

    @property
    def all_rows_sent(self) -> bool:
        """Whether the rows at all `row_positions` have been sent and no more will follow."""
        return self._rows_sent == len(self.row_positions) and not self.is_open

    def kept(self) -> Kept | None:
        """Return the slot's content for reuse, or None if the prompt hasn't been prefilled
        completely.
        """
        if self.is_open:
            # Only the part that a later prompt is certain to contain as well.
            known = min(self.length, self._head)
            return Kept(self.content[:known], known) if known >= MIN_REUSED else None
        if self.remaining:
            return None
        prompt = self.content[: len(self.prompt.ids)]
        content = np.concatenate([prompt, self.reply.ids]).astype(np.int64)
        return Kept(content[: self.length], len(self.prompt.ids))

    def seen(self, logits: torch.Tensor) -> torch.Tensor:
        """Return a bool tensor [V] that marks the IDs that have occurred so far. It has the same
        shape as `logits` and is used for the repetition penalty.

        The result is kept on the device and updated. IDs outside the vocabulary are ignored.
        """
        if self._seen is None:
            self._seen = torch.zeros_like(logits, dtype=torch.bool)
            ids = self._fed[self._fed < len(logits)].astype(np.int64)
            self._seen[on_device(ids, logits.device)] = True
        # Each ID is recorded before the next one is chosen.
        if latest := self.reply.ids[-1:]:
            self._seen[latest[0]] = True
        return self._seen

    def latest(self, count: int) -> Sequence[int]:
        """Return the last `count` IDs of the prompt and the reply."""
        ids = self.reply.ids[-count:]
        missing = count - len(ids)
        before: list[int] = self.prompt.ids[-missing:].tolist() if missing else []
        return [*before, *ids]

    def placed(self) -> int:
        """Return the slot. Raises `Internal` if `place` has not been called."""
        if self.slot is None:
            raise Internal("a prompt is fed before it has a slot")
        return self.slot


def _behind(
    length: int, positions: Positions, piece: AudioFeatures | VisualPatches
) -> tuple[Positions, AudioFeatures | VisualPatches]:
    """Return a piece without the recordings that end within the first `length` positions. The last
    recording is always included.
    """
    if not isinstance(piece, AudioFeatures):
        return positions, piece
    ends = np.cumsum(piece.positions)
    past = int(np.searchsorted(ends[:-1], np.searchsorted(positions, length), side="right"))
    return positions[ends[past - 1] if past else 0 :], piece.behind(past)


def prompt_content(ids: Ids, audio_id: int, audio: AudioFeatures | None) -> Content:
    """Return the content of a prompt's positions. Digests are negative, which distinguishes them
    from IDs.
    """
    content = ids.astype(np.int64)
    if audio is not None:
        heard = np.flatnonzero(ids == audio_id)[: sum(audio.positions)]
        content[heard] = np.repeat(np.asarray(audio.digests), audio.positions)
    return content


def visual_positions(prompt: PreparedPrompt, special: MediaIds) -> Sequence[Positions]:
    """Return the positions of each image and video in the prompt, in order."""
    left = {
        "image": np.flatnonzero(prompt.ids == special.image),
        "video": np.flatnonzero(prompt.ids == special.video),
    }
    found = []
    for visual in prompt.visuals:
        positions = left[visual.kind]
        found.append(positions[: visual.positions])
        left[visual.kind] = positions[visual.positions :]
    return found
