"""The command queue of the engine thread, organized by segment. Both the number of commands and
their total size are limited.

The engine receives all commands before its next step, so their order matters only within a segment.
When a segment is released, its queued input is dropped right away, because clients can open and
cancel many sessions during one long step.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from antiphon.errors import ResourceExhausted
from antiphon.runtime.session.instructions import Admit, EngineCommand, Feed, Release
from antiphon.values.segment import SegmentKey

MAX_COMMANDS = 65536


class EngineMailbox:
    """Holds up to `MAX_COMMANDS` commands with a total of up to `max_bytes` bytes of input. This
    class is not thread-safe.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: dict[SegmentKey, list[EngineCommand]] = {}
        self._commands = 0
        self._bytes = 0

    def __len__(self) -> int:
        """Return the number of waiting commands."""
        return self._commands

    def put(self, command: EngineCommand) -> None:
        """Add a command. Raises `ResourceExhausted` if the mailbox is full.

        A `Release` is always accepted, because it frees space. If no other input is waiting, input
        of any size is accepted. It is up to the sender to limit the size of a single input.
        """
        if isinstance(command, Release):
            self._release(command)
            return
        size = _size(command)
        if self._commands >= MAX_COMMANDS:
            raise ResourceExhausted(
                f"{MAX_COMMANDS} commands are waiting for the engine, which is the maximum"
            )
        if size and self._bytes and self._bytes + size > self._max_bytes:
            raise ResourceExhausted(
                f"{self._bytes} bytes of input are waiting for the engine, and {size} more "
                f"would exceed sessions.mailbox_bytes ({self._max_bytes})"
            )
        self._add(command, size)

    def take(self) -> Iterator[EngineCommand]:
        """Remove and return all commands.

        The iterator doesn't keep references to the commands it has yielded, because their input may
        be large.
        """
        waiting, self._waiting = self._waiting, {}
        self._commands = self._bytes = 0
        return _hand_out(waiting)

    def _release(self, release: Release) -> None:
        """Drop all waiting commands of a segment that is being released. The release itself is kept
        if the engine knows the segment.

        The release of a cancelled segment is always kept, because it has to be reported.
        """
        dropped = self._waiting.pop(release.key, [])
        self._commands -= len(dropped)
        self._bytes -= sum(map(_size, dropped))
        if release.cancelled or not any(isinstance(each, Admit) for each in dropped):
            self._add(release, 0)

    def _add(self, command: EngineCommand, size: int) -> None:
        self._waiting.setdefault(command.key, []).append(command)
        self._commands += 1
        self._bytes += size


def _hand_out(waiting: dict[SegmentKey, list[EngineCommand]]) -> Iterator[EngineCommand]:
    for key in list(waiting):
        commands = waiting.pop(key)
        commands.reverse()
        while commands:
            yield commands.pop()


def _size(command: EngineCommand) -> int:
    """Return the size of a command's input in bytes."""
    match command:
        case Feed(_, chunk):
            return sum([tensor.nbytes for tensor in chunk.tensors.values()])
        case Admit(_, settings):
            values = settings.options.values()
            return sum(value.nbytes for value in values if isinstance(value, np.ndarray))
    return 0
