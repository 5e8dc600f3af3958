"""What waits for the engine's thread: commands by segment, bounded in number and in bytes.

The engine is told all of them before its next step, so only the order within a segment
matters. What is fed to a segment that is released meanwhile is nobody's: it goes at once,
because a step may be long, and sessions can be opened and cancelled all through it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from antiphon.errors import ResourceExhausted
from antiphon.runtime.session.instructions import Admit, EngineCommand, Feed, Release
from antiphon.values.segment import SegmentKey

MAX_COMMANDS = 65536


class EngineMailbox:
    """Holds at most `MAX_COMMANDS` commands and `max_bytes` of input. Not thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: dict[SegmentKey, list[EngineCommand]] = {}
        self._commands = 0
        self._bytes = 0

    def __len__(self) -> int:
        """How many commands wait."""
        return self._commands

    def put(self, command: EngineCommand) -> None:
        """Add a command. Raises `ResourceExhausted` when there is no room for it.

        A `Release` always goes in: it only makes room. Input goes in when no other waits,
        however large it is: what can never go in should not have been taken from its sender.
        """
        if isinstance(command, Release):
            self._release(command)
            return
        size = _size(command)
        if self._commands >= MAX_COMMANDS:
            raise ResourceExhausted(f"{MAX_COMMANDS} commands wait for the engine")
        if size and self._bytes and self._bytes + size > self._max_bytes:
            raise ResourceExhausted(
                f"{self._bytes} bytes of input wait for the engine, which leaves no room for "
                f"{size} more within mailbox_bytes ({self._max_bytes})"
            )
        self._add(command, size)

    def take(self) -> Iterator[EngineCommand]:
        """All that waits, which is the caller's from now on; the mailbox is empty.

        What the iterator has handed out it refers to no more: input is large.
        """
        waiting, self._waiting = self._waiting, {}
        self._commands = self._bytes = 0
        return _hand_out(waiting)

    def _release(self, release: Release) -> None:
        """Drop what waits for the segment; the engine must know only what it was told before.

        The release of a cancelled one stays, so that it is told.
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
    """Bytes of input in a command."""
    match command:
        case Feed(_, chunk):
            return sum([tensor.nbytes for tensor in chunk.tensors.values()])
        case Admit(_, settings):
            values = settings.options.values()
            return sum(value.nbytes for value in values if isinstance(value, np.ndarray))
    return 0
