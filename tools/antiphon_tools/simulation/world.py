"""Callers, a gateway and replicas of two stages, and everything that can happen between them.

Each of the `moves` and `faults` is one thing that may come next; the caller chooses. What is found
to be wrong is raised as `Violation`. Queues between two ends keep their order, as streams and links
do; what lies in different ones may arrive in any.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial

from antiphon.errors import AntiphonError, Cancelled, DeadlineExceeded, Unavailable
from antiphon.runtime.session.facts import (
    ClientDone,
    Credited,
    SegmentCancelled,
    SegmentRequested,
    SessionRequested,
    StreamLost,
)
from antiphon.runtime.session.instructions import (
    REPLY,
    Destination,
    End,
    Report,
    Send,
)
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest
from antiphon.values.segment import SegmentKey
from antiphon_tools.simulation.caller import Caller
from antiphon_tools.simulation.engines import SAMPLES_PER_FRAME
from antiphon_tools.simulation.fleet import Move, SimulatedFleet
from antiphon_tools.simulation.host import ROLES, TALKER, VOCODER, SimulatedStage
from antiphon_tools.simulation.network import Gone, SimulatedStream, Violation, name_of

MOMENT_S = 0.05
MOST_MOMENTS = 20
"""Together they are shorter than any timeout of a stage."""
LONG_S = 6.0
"""Longer than a stage waits for anybody."""
AUDIO_ALONE = frozenset({"audio"})
MOST_MOVES = 20_000
"""Until everything has ended once nothing fails any more."""
WINDOWS = {"codes": 3, "audio": 4 * SAMPLES_PER_FRAME}


class World:
    """`faults` is how many things may fail; see the head of this file."""

    def __init__(self, callers: list[Caller], *, faults: int, cancels: int) -> None:
        self.fleet = SimulatedFleet()
        self.callers = callers
        self._faults_left, self._cancels_left = faults, cancels
        self._moments = 0
        self._unopened = list(callers)
        # Samples that a caller has taken, and of which its stage has not been told.
        self._taken: dict[str, int] = {}

    def moves(self) -> list[Move]:
        """Everything that may come next, but for what fails."""
        passing: list[Move] = [("time passes", self._pass_moment)]
        return [
            *self._asked(),
            *self._replies(),
            *self.fleet.arrivals(),
            *self.fleet.rounds(),
            *self._listeners(),
            *(passing if self._moments < MOST_MOMENTS else []),
        ]

    def _asked(self) -> Iterator[Move]:
        for caller in self._unopened:
            if all(self.fleet.alive(role) for role in ROLES):
                yield f"{caller.name} is asked for", partial(self._open, caller)

    def _replies(self) -> Iterator[Move]:
        for stream in self.fleet.streams:
            if stream.up:
                what = f"the gateway gets {name_of(stream.up[0])} of {stream.session_id}"
                yield f"{what} from {stream.host.name}", partial(self._deliver_up, stream)

    def _listeners(self) -> Iterator[Move]:
        for caller in self.callers:
            if caller.session_id in self._taken:
                yield f"{caller.name} has listened", partial(self._listen, caller)

    def faults(self) -> list[Move]:
        """Everything that may fail next, what comes of that, and callers who leave."""
        found = list(self.fleet.recoveries())
        if self.fleet.unwell:
            found.append(("much time passes", self._wait_long))
        if self._faults_left:
            found += [(name, partial(self._fail, fail)) for name, fail in self.fleet.faults()]
        if self._cancels_left:
            found += [
                (f"{caller.name} is cancelled", partial(self._cancel, caller))
                for caller in self.callers
                if self._streams_of(caller) and not caller.over
            ]
        return found

    def run_out(self, told: Callable[[str], None]) -> None:
        """Let everything end that can, with all replicas and links up. Raises `Violation`."""
        self.fleet.recover()
        self._moments = MOST_MOMENTS
        for turn in range(MOST_MOVES):
            moves = self.moves()
            if not moves:
                break
            name, move = moves[turn % len(moves)]
            told(name)
            move()
        else:
            raise Violation("it goes on for ever")
        for caller in self.callers:
            self._check_ended(caller)
        self.fleet.check_rest()

    def _check_ended(self, caller: Caller) -> None:
        """Raise `Violation` unless the call has ended as it should."""
        if fault := caller.fault():
            raise Violation(fault)
        if not caller.over:
            raise Violation(f"{caller.name} waits for ever")
        late = self.fleet.waited and isinstance(caller.error, DeadlineExceeded)
        if caller.error is not None and not late:
            raise Violation(f"{caller.name} was given up: {caller.error}")

    def _fail(self, fail: Callable[[], None]) -> None:
        self._faults_left -= 1
        fail()

    def _wait_long(self) -> None:
        self.fleet.waited = True
        self.fleet.advance(LONG_S)

    def _pass_moment(self) -> None:
        self._moments += 1
        self.fleet.advance(MOMENT_S)

    # -- what the gateway does ------------------------------------------------------------

    def _open(self, caller: Caller) -> None:
        self._unopened.remove(caller)
        caller.begin()
        picked = {role: self._pick(role, caller) for role in ROLES}
        vocoder = picked[VOCODER]
        routes = {
            TALKER: {"codes": (Destination(vocoder.address, vocoder.boot_id),)},
            VOCODER: {"audio": (REPLY,)},
        }
        for role, host in picked.items():
            session = SessionRequest(caller.session_id, routes[role], windows=WINDOWS)
            history = caller.history if role == TALKER else None
            turn = SegmentRequest(
                0, caller.sampling, "", AUDIO_ALONE, {}, last=True, history=history
            )
            stream = SimulatedStream(caller, host, caller.session_id)
            stream.down += [SessionRequested(session), SegmentRequested(caller.session_id, turn)]
            self.fleet.streams.append(stream)

    def _pick(self, role: str, caller: Caller) -> SimulatedStage:
        """One that is up, the same one whenever the same is asked in the same world."""
        alive = self.fleet.alive(role)
        alive = [each for each in alive if not each.stands_still] or alive
        return alive[zlib.crc32(f"{role} {caller.session_id}".encode()) % len(alive)]

    def _deliver_up(self, stream: SimulatedStream) -> None:
        message, caller = stream.up.popleft(), stream.caller
        if isinstance(message, Gone) and self.fleet.runs(stream.host):
            # Given up while it stood still: it learns of that when it goes on.
            stream.down.clear()
            stream.down.append(StreamLost(stream.session_id))
        elif isinstance(message, End | Gone):
            self.fleet.streams.remove(stream)
        left = stream.session_id != caller.session_id or caller in self._unopened
        if left or caller.finished or caller.error:
            return
        match message:
            case Gone():
                self._failed(caller, Unavailable("the stage is gone", stage=stream.host.role))
                return
            case End(_, error) if error is not None:
                lost = Unavailable(str(error)) if isinstance(error, Cancelled) else error
                self._failed(caller, lost)
                return
            case End():
                caller.progress.add_end(stream.host.role)
            case Send(_, chunk):
                taken = caller.take(stream.host.role, chunk)
                if taken is not None:
                    self._taken[caller.session_id] = taken
            case Report():
                caller.report(stream.host.role)
        if caller.cancelled and caller.progress.complete:
            caller.finished = True
        if caller.finished or (not caller.cancelled and caller.finish_if_complete()):
            for each in self._streams_of(caller):
                each.down.append(ClientDone(caller.session_id))

    def _failed(self, caller: Caller, error: AntiphonError) -> None:
        """The session is left, and another attempt is made where that helps."""
        if not self.fleet.failed:
            raise Violation(f"{caller.name} failed although nothing did: {error}")
        for stream in self._streams_of(caller):
            stream.down.clear()
            stream.down.append(StreamLost(caller.session_id))
        self._taken.pop(caller.session_id, None)
        if caller.cancelled:
            caller.finished = True
        elif caller.goes_on(error):
            self._unopened.append(caller)

    def _cancel(self, caller: Caller) -> None:
        self._cancels_left -= 1
        caller.cancelled = True
        caller.progress.cancel()
        for stream in self._streams_of(caller):
            stream.down.append(SegmentCancelled(caller.session_id, 0))

    def _listen(self, caller: Caller) -> None:
        total = self._taken.pop(caller.session_id) + WINDOWS["audio"]
        for stream in self._streams_of(caller):
            if stream.host.role == VOCODER:
                key = SegmentKey(caller.session_id, 0)
                stream.down.append(Credited(key, "audio", REPLY, total))

    def _streams_of(self, caller: Caller) -> list[SimulatedStream]:
        return [each for each in self.fleet.streams if each.session_id == caller.session_id]
