"""A checkpoint's talker model: forward passes and sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, one_hot

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.qwen2_5_omni import PlaceholderIds, voices_by_name
from antiphon.transport.device_edge import ToDevice, on_device
from antiphon.values.chunk import Tensor as Array
from antiphon_services.lm.decoder import Decoder
from antiphon_services.lm.experts import LEAST_ROWS
from antiphon_services.lm.frame_decoder import FrameDecoder
from antiphon_services.lm.frames import FrameDraw, PromptPart
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.known_frames import KnownPart
from antiphon_services.lm.readback import Drawn, PendingDraw, Readback
from antiphon_services.lm.sampler import SamplingRows, choose_each, draw_numbers
from antiphon_services.qwen2_5_omni.talker.ids import TalkerIds
from antiphon_services.qwen2_5_omni.talker.rows import TextRow, ThinkerRows

RowText = Array | TextRow
"""The text side of a draw's row. It is either a thinker row or, if there is none, a marker."""


class CodecTalker(FrameDecoder):
    """The talker's forward passes and sampling.

    `module` has the same interface as Hugging Face's talker for conditional generation. `words` [V,
    width] is the thinker's word table. Only the rows that the talker needs are kept. `voices` maps
    names to IDs in this table. `to_device` copies thinker rows to the device, and `readback` copies
    codes back to the host. Without `readback`, each step waits for its codes. If `bucketing` is
    given, parts of a step run as CUDA graphs, which use `kernels` if they are given.

    Raises `FailedPrecondition` if there is no voice or an ID is out of range, and `InvalidArgument`
    if there isn't enough memory for `slots` segments of `context_limit` positions.
    """

    def __init__(
        self,
        module: Any,
        words: Tensor,
        ids: TalkerIds,
        placeholders: PlaceholderIds,
        voices: Mapping[str, int],
        *,
        context_limit: int,
        slots: int,
        to_device: ToDevice | None = None,
        readback: Readback | None = None,
        bucketing: Bucketing | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self.ids, self._placeholders = ids, placeholders
        self._head: Tensor = module.codec_head.weight
        self._device, dtype = self._head.device, self._head.dtype
        self._codes: Tensor = module.model.embed_tokens.weight
        project = module.thinker_to_talker_proj
        self._project = (project.weight, project.bias)
        decoder = Decoder(
            module.model,
            context_limit,
            batch_invariant=True,
            exact_norms=False,
            bucketing=bucketing,
            most_rows=max(slots, LEAST_ROWS),
            kernels=kernels,
        )
        super().__init__(decoder, slots, context_limit)
        self._to_device = to_device or ToDevice.direct(self._device)
        self._readback = readback or Readback(None)
        self.row_width = words.shape[1]
        vocabulary = len(self._codes)
        self.code_sizes = (ids.code_entries,)
        if self.row_width != self._codes.shape[1]:
            raise FailedPrecondition(
                f"the thinker's rows have the width {self.row_width}, but the talker's have "
                f"{self._codes.shape[1]}"
            )
        _check_ids(ids, voices, words=len(words), codes=vocabulary)
        pad = self._codes[ids.codec_pad]
        self._voice_rows = {
            name: words[id_].to(self._device, dtype) + pad
            for name, id_ in voices_by_name(voices).items()
        }
        # The rows for the end of the text and for padding, in the order of `TextRow`.
        self._text_rows = words[[ids.text_end, ids.text_pad]].to(self._device, dtype)
        self._suppressed = torch.arange(vocabulary, device=self._device) == ids.codec_bos
        # For each slot, the IDs to which the repetition penalty applies, and the codec side of the
        # next row.
        self._seen = torch.zeros(slots, vocabulary, dtype=torch.bool, device=self._device)
        self._at_first = torch.zeros(vocabulary, dtype=torch.bool, device=self._device)
        self._at_first[[ids.codec_mask, ids.codec_pad, ids.codec_bos]] = True
        self._begin = self._codes[ids.codec_bos]
        self._pending: Tensor = self._begin.repeat(slots, 1)
        self._shifts = [0] * slots

    @property
    def voices(self) -> tuple[str, ...]:
        """The names of the voices in lower case, starting with the default voice."""
        return tuple(self._voice_rows)

    def new_rows(self) -> ThinkerRows:
        """Return an empty set of rows, with this checkpoint's placeholders and width."""
        return ThinkerRows(self._placeholders, self.row_width)

    def take_slot(self, session: str, *, returns: bool) -> int:
        """Return a slot for a new segment, as described in `FrameDecoder.take_slot`."""
        slot = super().take_slot(session, returns=returns)
        self._seen[slot] = self._at_first
        self._pending[slot] = self._begin
        self._shifts[slot] = 0
        return slot

    def step(
        self,
        parts: Sequence[PromptPart[ThinkerRows]],
        draws: Sequence[FrameDraw[RowText]],
        known: Sequence[KnownPart[ThinkerRows]] = (),
    ) -> tuple[list[PendingDraw], list[list[Drawn]]]:
        """Append all rows in one forward pass.

        Returns a pending ID for each element of `draws`, in order, and the draws of each `known`
        part up to the first one that isn't a code. With asynchronous copies, the step only waits
        for the device if there are `known` parts, because their draws determine which rows remain
        valid.
        """
        arranged = self.arrange([*parts, *known], draws)
        ordered, filled = arranged.draws, arranged.filled
        rows = [self._prompt(each) for each in parts]
        rows += [self._known_rows(each) for each in known]
        if filled:
            rows.append(self._next_rows(filled))
        joined = torch.cat(rows)
        # A matrix product with fewer rows would round differently.
        missing = max(LEAST_ROWS - len(joined), 0)
        projected = linear(torch.cat((joined, joined[-1:].expand(missing, -1))), *self._project)
        turned = self._turned(parts, known, ordered)
        states, _ = self._decoder.append(projected[: len(joined)], arranged.plan, turned)
        start, checked = sum(each.stop - each.start for each in parts), []
        for each in known:
            stop = start + len(each.frames)
            checked.append(self._check_known(states[start:stop], each))
            start = stop
        if not draws:
            return [], checked
        drawn = self._draw(states[start : start + len(filled)], filled, len(draws))
        return self._readback.begin(drawn, arranged.rows_of(draws)), checked

    def _prompt(self, part: PromptPart[ThinkerRows]) -> Tensor:
        """Return the thinker rows [n, width] of a prompt part, followed by the voice's row if the
        part includes it.
        """
        taken, voiced = part.prompt.take_prompt(part.stop)
        rows = [] if taken is None else [self._to_device.copy(taken).to(self._head.dtype)]
        if voiced:
            rows.append(self._voice_rows[part.voice][None])
        return torch.cat(rows) if len(rows) > 1 else rows[0]

    def _next_rows(self, draws: Sequence[FrameDraw[RowText]]) -> Tensor:
        """Return rows [n, width] that combine the previous codes with the text sides of the
        draws.
        """
        slots = on_device([each.slot for each in draws], self._device)
        return self._pending[slots] + self._text([each.text for each in draws])

    def _known_rows(self, part: KnownPart[ThinkerRows]) -> Tensor:
        """Return the rows [n, width] that `_next_rows` would have returned if the known codes had
        been sampled.
        """
        codes = on_device(part.frames[:-1, 0].astype(np.int64), self._device)
        before = torch.cat((self._pending[part.slot][None], self._codes[codes]))
        return before + self._text(part.texts)

    def _text(self, texts: Sequence[RowText]) -> Tensor:
        """Return the text sides [n, width], which are either thinker rows or the rows for the end
        of the text and for padding.
        """
        kinds, table = list(TextRow), [self._text_rows]
        index: list[int] = []
        come: list[Array] = []
        for text in texts:
            if isinstance(text, TextRow):
                index.append(kinds.index(text))
            else:
                index.append(len(kinds) + len(come))
                come.append(text)
        if come:
            table.append(self._to_device.copy(np.stack(come)).to(self._head.dtype))
        return torch.cat(table)[on_device(index, self._device)]

    def _check_known(self, states: Tensor, part: KnownPart[ThinkerRows]) -> list[Drawn]:
        """Record a part's draws up to the first one that isn't a code. Return these draws.

        All other draws are assumed to be the known codes, even if a row was rounded differently.
        """
        count, slot = len(part.frames), part.slot
        codes = on_device(part.frames[:, 0].astype(np.int64), self._device)
        seen = self._seen[slot].repeat(count, 1)
        seen[1:] |= one_hot(codes[:-1], len(self._codes)).cumsum(0).bool()
        filled = torch.cat((states, states[-1:].expand(max(LEAST_ROWS - count, 0), -1)))
        steps = range(part.step, part.step + count)
        samplings = [part.sampling] * count
        chosen, highest = choose_each(
            linear(filled, self._head)[:count],
            SamplingRows.of(samplings, self._device),
            on_device(draw_numbers(samplings, steps, 1), self._device),
            seen=seen,
            suppressed=self._suppressed,
        )
        ends, entries = (self.ids.codec_pad, self.ids.codec_end), self.ids.code_entries
        made: list[Drawn] = []
        draws = zip(_rows(chosen, highest).tolist(), part.frames[:, 0], strict=True)
        for (id_, decided), code in draws:
            stray = id_ >= entries and id_ not in ends
            made.append(Drawn(np.array([id_ if stray else code], np.int64), bool(decided)))
            if stray or not decided:
                break
        drawn = on_device([int(each.ids[0]) for each in made], self._device)
        self._seen[slot, drawn] = True
        self._pending[slot] = self._codes[drawn[-1]]
        return made

    def _turned(
        self,
        parts: Sequence[PromptPart[ThinkerRows]],
        known: Sequence[KnownPart[ThinkerRows]],
        draws: Sequence[FrameDraw[RowText]],
    ) -> Tensor | None:
        """Return the rotary positions of all rows, or None if they are the same as the rows' places
        in the sequence.
        """
        for part in parts:
            self._shifts[part.slot] = part.prompt.shift
        given = [part.prompt.positions(part.start, part.stop) for part in parts]
        spans = [*(each.span for each in known), *(each.span for each in draws)]
        if not any(self._shifts[each.slot] for each in spans) and all(at is None for at in given):
            return None
        places = [
            np.repeat(np.arange(part.start, part.stop)[:, None], 3, axis=1) if at is None else at
            for part, at in zip(parts, given, strict=True)
        ]
        later = [
            at + self._shifts[each.slot] for each in spans for at in range(each.start, each.end)
        ]
        places.append(np.repeat(np.array(later, np.int64)[:, None], 3, axis=1))
        return on_device(np.concatenate(places), self._device)

    def _draw(self, states: Tensor, draws: Sequence[FrameDraw[RowText]], count: int) -> Tensor:
        """Return int64 [count, 2] for the first `count` draws. Each row contains the ID and whether
        the draw had a finite candidate.
        """
        samplings = [each.sampling for each in draws]
        numbers = draw_numbers(samplings, [each.step for each in draws], 1)
        slots = on_device([each.slot for each in draws], self._device)
        chosen, highest = choose_each(
            linear(states, self._head),
            SamplingRows.of(samplings, self._device),
            on_device(numbers, self._device),
            seen=self._seen.index_select(0, slots),
            suppressed=self._suppressed,
        )
        self._seen[slots[:count], chosen[:count]] = True
        self._pending[slots[:count]] = self._codes[chosen[:count]]
        return _rows(chosen[:count], highest[:count])


def _rows(chosen: Tensor, highest: Tensor) -> Tensor:
    """Return int64 [n, 2]. Each row contains an ID and whether the draw had a finite candidate."""
    return torch.stack((chosen, highest.isfinite().to(chosen.dtype)), 1)


def _check_ids(ids: TalkerIds, voices: Mapping[str, int], *, words: int, codes: int) -> None:
    """Raise `FailedPrecondition` if an ID is out of range or there is no voice."""
    if not voices:
        raise FailedPrecondition("the checkpoint has no voices")
    for name, id_ in voices.items():
        if not 0 <= id_ < words:
            raise FailedPrecondition(f"voice {name}: its ID {id_} must be below {words}")
    ours = (ids.codec_pad, ids.codec_bos, ids.codec_end, ids.codec_mask)
    if not all(0 <= each < words for each in (ids.text_end, ids.text_pad)) or not all(
        0 <= each < codes for each in ours
    ):
        raise FailedPrecondition(
            f"config.json: not all of the IDs {ids} are in the embedding tables"
        )
