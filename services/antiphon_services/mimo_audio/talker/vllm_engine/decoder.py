"""An implementation of `model.DialogueModel` whose layers run on vLLM.

A step first sends each session its next part. It then waits for the rows of all sessions that draw.
Sessions therefore share vLLM's steps, in the same way as they share a forward pass of the torch
engine.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from antiphon.errors import AntiphonError, ResourceExhausted
from antiphon.transport.device_edge import Mark
from antiphon.values.chunk import Tensor
from antiphon_services.lm.experts import LEAST_ROWS
from antiphon_services.lm.frames import PromptPart
from antiphon_services.lm.kept_parts import KeptParts
from antiphon_services.lm.pending_step import DrawInFlight
from antiphon_services.lm.readback import Readback
from antiphon_services.lm.slots import Slots
from antiphon_services.mimo_audio.talker.dialogue_segment import DialogueInput
from antiphon_services.mimo_audio.talker.draws import PositionDraws, TextDraw
from antiphon_services.mimo_audio.talker.group_encoder import GroupEncoder
from antiphon_services.mimo_audio.talker.prompt import TaskPrompt
from antiphon_services.vllm.mailbox import Delivery, Ended, Mailbox, Rows
from antiphon_services.vllm.session import GivenRows, SessionPart, VllmSession

NAME_BYTES = 16


class SessionHost(Protocol):
    """Runs sessions. Implemented by `antiphon_services.vllm.host.VllmHost`."""

    def open(self, session: VllmSession) -> None:
        """Start a session."""

    def extend(self, session: VllmSession, part: SessionPart) -> None:
        """Send the next part of a session."""

    def cancel(self, number: int) -> None:
        """Cancel a session."""


@dataclass(frozen=True, slots=True)
class LostDraw:
    """A draw that failed because its session ended. `read` returns the error."""

    error: AntiphonError
    mark: Mark | None = None

    def read(self) -> AntiphonError:
        """Return the error."""
        return self.error


@dataclass(slots=True)
class _PagedSession:
    """The vLLM session of a slot.

    `rows` contains the rows received so far by position. `fault` is the error that ended the
    session.
    """

    session: VllmSession
    rows: dict[int, Tensor] = field(default_factory=dict)
    fault: AntiphonError | None = None


class PagedSpeechTextModel:
    """Implements `model.DialogueModel` for up to `slots` sessions.

    `empty_id` is the token that stands for a group of frames.
    """

    def __init__(
        self,
        encoder: GroupEncoder,
        draws: PositionDraws,
        host: SessionHost,
        mailbox: Mailbox,
        *,
        empty_id: int,
        slots: int,
    ) -> None:
        self.draws = draws
        self.code_sizes = draws.code_sizes
        self.kept = KeptParts()
        self._encoder, self._empty_id = encoder, empty_id
        self._host, self._mailbox = host, mailbox
        self._readback = Readback(None)
        self._slots, self._count = Slots(slots), slots
        self._numbers = itertools.count()
        self._by_slot: dict[int, _PagedSession] = {}
        self._by_number: dict[int, _PagedSession] = {}

    def take_slot(self, session: str, *, returns: bool) -> int:
        """Reserve a free slot. Raises `ResourceExhausted` if all slots are in use."""
        slot = self._slots.take()
        if slot is None:
            raise ResourceExhausted(f"all {self._count} slots are in use")
        return slot

    def give_slot_back(self, slot: int, doubtful: range) -> None:
        """End the session of the slot.

        vLLM keeps the data that other sessions can reuse from its prefix cache.
        """
        if (running := self._by_slot.pop(slot, None)) is not None:
            del self._by_number[running.session.number]
            self._host.cancel(running.session.number)
        self._slots.free(slot)

    def begin(self, slot: int, prompt: TaskPrompt) -> None:
        """Open the session that will answer a prompt."""
        self.draws.begin(slot, prompt)
        running = _PagedSession(VllmSession(next(self._numbers), len(prompt.ids) - 1))
        self._by_slot[slot] = self._by_number[running.session.number] = running
        self._host.open(running.session)

    def step(
        self, parts: Sequence[PromptPart[DialogueInput]], draws: Sequence[TextDraw]
    ) -> Sequence[DrawInFlight]:
        """Implements `JointModel.step`. Waits for vLLM if there are draws."""
        for each in parts:
            rows = slice(each.start, each.stop)
            self._extend(each.slot, each.prompt.held.ids[rows], each.prompt.held.codes[rows])
        if not draws:
            return []
        ids, codes = self.draws.inputs([each.slot for each in draws])
        inputs = zip(draws, ids.cpu().numpy(), codes.cpu().numpy(), strict=True)
        for draw, id_, group in inputs:
            self._extend(draw.slot, id_[None], group[None])
        waiting = {draw.slot: draw.position for draw in draws}
        while any(self._awaits(slot, position) for slot, position in waiting.items()):
            for delivery in self._mailbox.take(None):
                self._note(delivery)
        return self._draw(draws)

    def _draw(self, draws: Sequence[TextDraw]) -> Sequence[DrawInFlight]:
        """Return a draw for each row that has been received, and the error of each session without
        one.
        """
        at_slot = {draw.slot: self._by_slot[draw.slot] for draw in draws}
        faults = {slot: running.fault for slot, running in at_slot.items()}
        drawing = [draw for draw in draws if faults[draw.slot] is None]
        lost = {slot: LostDraw(fault) for slot, fault in faults.items() if fault is not None}
        if not drawing:
            return [lost[draw.slot] for draw in draws]
        rows = [at_slot[draw.slot].rows.pop(draw.position) for draw in drawing]
        filling = max(LEAST_ROWS - len(drawing), 0)
        stacked = np.stack([*rows, *rows[-1:] * filling]).astype(np.float32)
        states = torch.from_numpy(stacked).to(self.draws.device, self.draws.dtype)
        drawn = self.draws.draw(states, [*drawing, *drawing[-1:] * filling], len(drawing))
        made = iter(self._readback.begin(drawn, range(len(drawing))))
        return [lost.get(draw.slot) or next(made) for draw in draws]

    def _awaits(self, slot: int, position: int) -> bool:
        running = self._by_slot[slot]
        return running.fault is None and position not in running.rows

    def _note(self, delivery: Delivery) -> None:
        """Store a delivery for a session that still has a slot."""
        match delivery:
            case Rows(number, start, rows) if (running := self._by_number.get(number)) is not None:
                running.rows |= {start + at: row for at, row in enumerate(rows)}
            case Ended(number, error) if (running := self._by_number.get(number)) is not None:
                running.fault = error

    def _extend(
        self, slot: int, ids: npt.NDArray[np.int64], codes: npt.NDArray[np.integer]
    ) -> None:
        """Send positions to the session of the slot.

        `ids` has shape [n], and `codes` has shape [n, group, channels].
        """
        spoken = ids == self._empty_id
        edges = np.flatnonzero(np.diff(spoken, prepend=False, append=False))
        given = []
        for start, stop in edges.reshape(-1, 2).tolist():
            run = np.ascontiguousarray(codes[start:stop], np.int64)
            rows = self._encoder.encode(torch.from_numpy(run).to(self.draws.device)).cpu()
            name = hashlib.blake2b(run.tobytes(), digest_size=NAME_BYTES).hexdigest()
            given.append(GivenRows(start, rows, name))
        part = SessionPart(ids.astype(np.int32), given)
        self._host.extend(self._by_slot[slot].session, part)
