"""Random scripts of one call: what its server and its client do, and what may come of it.

A script never deadlocks. The server only takes messages that the client writes without waiting for
anything later, and the client only waits for steps that the server reaches by then.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum, auto

from antiphon.errors import (
    AntiphonError,
    Cancelled,
    DataLoss,
    FailedPrecondition,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)

FLOOD = 48
"""The writes of a flood, more than the queue of a call takes."""
FLOOD_BYTES = 64 << 10


class End(Enum):
    """How the server ends the call. `SILENT` leaves that to the client, and so does `DAMAGED` after
    a message that is no message.
    """

    OK = auto()
    TYPED = auto()
    PLAIN = auto()
    DAMAGED = auto()
    CUT = auto()
    SILENT = auto()


class Step(Enum):
    """A step of the server, or of the client's writer or reader."""

    SEND = auto()
    TAKE = auto()
    WRITE = auto()
    FLOOD = auto()
    """More messages than the queue has room for, by a task or thread of its own."""
    FINISH = auto()
    CANCEL = auto()
    CLOSE = auto()
    STOP_READER = auto()
    """The reader's task is cancelled."""
    STOP_FLOOD = auto()
    READ = auto()
    AWAIT_END = auto()
    """Until the server has ended the call, and everything that it has sent has arrived."""
    AWAIT_WRITER = auto()


@dataclass(frozen=True)
class AwaitSteps:
    """The writer waits until the server has done so many steps."""

    steps: int


@dataclass(frozen=True)
class Script:
    """What each of the three does."""

    seed: int
    serving: tuple[Step, ...]
    end: End
    writing: tuple[Step | AwaitSteps, ...]
    reading: tuple[Step, ...]

    @property
    def sends(self) -> int:
        """The messages that the server sends before its end."""
        return self.serving.count(Step.SEND)

    @property
    def leaves(self) -> bool:
        """Whether the client ends the call itself, perhaps before the server does."""
        return not {Step.CANCEL, Step.CLOSE, Step.STOP_READER}.isdisjoint(self.writing)

    def __str__(self) -> str:
        def names(steps: tuple[Step | AwaitSteps, ...]) -> str:
            return " ".join(each.name if isinstance(each, Step) else str(each) for each in steps)

        return (
            f"seed {self.seed}\n  server: {names(self.serving)} END {self.end.name}\n"
            f"  writer: {names(self.writing)}\n  reader: {names(self.reading)}"
        )


def random_script(seed: int, *, writes: bool, tasks: bool) -> Script:
    """`writes`: the call takes messages of the client. `tasks`: the client's reader and writer are
    tasks, which can be cancelled.
    """
    dice = random.Random(seed)
    end = dice.choice([*End, End.TYPED, End.TYPED, End.PLAIN])
    serving: list[Step] = []
    writing: list[Step | AwaitSteps] = []
    for _ in range(dice.randrange(7)):
        serving.append(dice.choice([Step.SEND, Step.SEND, Step.TAKE] if writes else [Step.SEND]))
        if serving[-1] is Step.TAKE:
            writing.append(Step.WRITE)
        if dice.random() < 0.2:
            writing.append(AwaitSteps(len(serving)))
    if writes:
        writing += [Step.WRITE] * dice.randrange(3)
        # Nothing is written after this until the call ends, as the server takes no more.
        if dice.random() < 0.3:
            writing.append(Step.FLOOD)
            if tasks and dice.random() < 0.3:
                writing.append(Step.STOP_FLOOD)
    ends = end is not End.SILENT
    if ends and dice.random() < 0.6:
        writing.append(Step.AWAIT_END)
        writing += [Step.WRITE] * (dice.randrange(4) if writes else 0)
    if not ends or dice.random() < 0.25:
        writing.append(dice.choice([Step.CANCEL, Step.CLOSE, *[Step.STOP_READER] * tasks]))
    elif writes and dice.random() < 0.6:
        writing.append(Step.FINISH)
    if writes and dice.random() < 0.4:
        writing.append(Step.WRITE)
    reading = [Step.READ] * dice.randrange(serving.count(Step.SEND) + 1)
    if dice.random() < 0.6:
        # The writer may be stuck until a damaged message is read.
        pauses = {End.SILENT: [Step.AWAIT_WRITER], End.DAMAGED: [Step.AWAIT_END]}
        pause = dice.choice(pauses.get(end, [Step.AWAIT_WRITER, Step.AWAIT_END]))
        reading.insert(dice.randrange(len(reading) + 1), pause)
    return Script(seed, tuple(serving), end, tuple(writing), tuple(reading))


@dataclass
class Outcome:
    """What a client has seen. `ends` has what the reads after the last message gave: None for the
    end of the stream, or an error. `written` and `flooded` have what each write gave.
    """

    messages: list[int] = field(default_factory=list)
    ends: list[AntiphonError | None] = field(default_factory=list)
    written: list[AntiphonError | None] = field(default_factory=list)
    flooded: list[AntiphonError | None] = field(default_factory=list)


TYPED_ERROR = ResourceExhausted("all seats are taken", stage="talker", retry_after_s=0.25)
PLAIN_SAID = "no key"
OWN_END: dict[End, type[AntiphonError] | None] = {
    End.OK: None,
    End.TYPED: type(TYPED_ERROR),
    End.PLAIN: Unauthenticated,
    End.DAMAGED: DataLoss,
    End.CUT: Unavailable,
}


def check(script: Script, outcome: Outcome, *, completes_failures: bool) -> None:
    """The law: a reader gets all messages that the server has sent before its end, in their order,
    and then the server's own end. If the client leaves the call, it gets the first of them, and
    then that it has left or the server's end. If the connection is cut, it gets the first of them.

    `completes_failures`: a typed error is the last message of a call that is completed, so writing
    may end with that before the message is read.
    """
    complete = list(range(script.sends))
    first, *later = outcome.ends
    assert outcome.messages == complete[: len(outcome.messages)], "in order, each once"
    ends = [] if script.end is End.SILENT else [OWN_END[script.end]]
    if script.leaves:
        ends.append(Cancelled)
    elif script.end is not End.CUT:
        assert outcome.messages == complete, "all of them"
    assert (None if first is None else type(first)) in ends, first
    if isinstance(first, ResourceExhausted):
        assert (first.message, first.stage) == (TYPED_ERROR.message, TYPED_ERROR.stage)
        assert first.retry_after_s == TYPED_ERROR.retry_after_s
    if isinstance(first, Unauthenticated):
        assert first.message == PLAIN_SAID
    for each in later:
        assert (type(each), str(each)) == (type(first), str(first)), "each further read ends alike"
    may_fail = _may_fail_writes(script)
    if completes_failures and script.end is End.TYPED:
        may_fail.add(FailedPrecondition)
    _check_writes(outcome.written, may_fail)
    _check_writes(outcome.flooded, may_fail)


def _may_fail_writes(script: Script) -> set[type[AntiphonError]]:
    own = None if script.end is End.SILENT else OWN_END[script.end]
    may_fail: set[type[AntiphonError]] = set()
    if script.end is not End.SILENT:
        may_fail.add(own or FailedPrecondition)
    if script.leaves:
        may_fail.add(Cancelled)
    if Step.FINISH in script.writing:
        may_fail.add(FailedPrecondition)
    return may_fail


def _check_writes(written: list[AntiphonError | None], may_fail: set[type[AntiphonError]]) -> None:
    """A write is queued, or raises what has ended the call or the client's side of it."""
    failed = [each for each in written if each is not None]
    assert all(type(each) in may_fail for each in failed), failed
    assert None not in written[len(written) - len(failed) :], "none after a failure"
    for each in failed:
        if isinstance(each, ResourceExhausted):
            assert each.message == TYPED_ERROR.message
