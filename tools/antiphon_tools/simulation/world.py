"""Calls, a gateway and the replicas of two stages, with all events that can occur between them.

Every element of `moves` and `faults` is an event that may occur next, and the caller selects one of
them. `Violation` is raised if an expectation is violated. As in real streams and links, messages in
the same queue keep their order, while messages in different queues can arrive in any order.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial

from antiphon.errors import AntiphonError, Cancelled, DeadlineExceeded, Unavailable
from antiphon.v1 import session_pb2
from antiphon.values.history import FRAMES
from antiphon.wire.chunks import chunk_from_proto
from antiphon.wire.convert import error_from_proto, sampling_to_proto
from antiphon.wire.history import history_to_proto
from antiphon_gateway.sessions.connection_errors import WindowExceeded
from antiphon_tools.simulation.caller import Caller
from antiphon_tools.simulation.engines import SAMPLES_PER_FRAME
from antiphon_tools.simulation.fleet import Move, SimulatedFleet, remaining_moves
from antiphon_tools.simulation.host import ROLES, TALKER, VOCODER, SimulatedStage
from antiphon_tools.simulation.network import Violation
from antiphon_tools.simulation.standing import SimulatedStream

MOMENT_S = 0.05
MOST_MOMENTS = 20
"""The total duration of this many moments is less than any stage timeout."""
LONG_S = 6.0
"""This is longer than any stage timeout."""
"""Once there are no more faults, all calls must end within this many moves."""
WINDOWS = {"codes": 3, "audio": 4 * SAMPLES_PER_FRAME}


class World:
    """The simulated system. `faults` and `cancels` are the maximum numbers of these events."""

    def __init__(self, callers: list[Caller], *, faults: int, cancels: int) -> None:
        self.fleet = SimulatedFleet()
        self.callers = callers
        self._faults_left, self._cancels_left = faults, cancels
        self._moments = 0
        self._unopened = list(callers)
        # The number of samples that a caller has received but not yet reported to its stage.
        self._taken: dict[str, int] = {}

    def moves(self) -> list[Move]:
        """Return all events that may occur next, except faults."""
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
            if stream.readable:
                what = f"the line of {stream.session_id} to {stream.host.name} is read"
                yield what, partial(self._read, stream)

    def _listeners(self) -> Iterator[Move]:
        for caller in self.callers:
            if caller.session_id in self._taken:
                yield f"{caller.name} has listened", partial(self._listen, caller)

    def faults(self) -> list[Move]:
        """Return all faults that may occur next, their consequences, and cancellations."""
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
        """Let all calls end, with all replicas and links available.

        Raises `Violation` if a check fails.
        """
        self.fleet.recover()
        self._moments = MOST_MOMENTS
        for name, move in remaining_moves(self._moves_of_recovered):
            told(name)
            move()
        for caller in self.callers:
            self._check_ended(caller)
        self.fleet.check_rest()

    def _moves_of_recovered(self) -> list[Move]:
        if self.fleet.unwell:
            # A damaged ring was noticed only now, which has broken its link.
            self.fleet.recover()
        return self.moves()

    def _check_ended(self, caller: Caller) -> None:
        """Raise `Violation` if the call has not ended correctly."""
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
        stage = session_pb2.StageTarget(address=vocoder.address, boot_id=vocoder.boot_id)
        reply = session_pb2.Destination(reply=session_pb2.ReplyTarget())
        routes = {
            TALKER: session_pb2.Route(
                edge="codes", destinations=[session_pb2.Destination(stage=stage)]
            ),
            VOCODER: session_pb2.Route(edge="audio", destinations=[reply]),
        }
        for role, host in picked.items():
            segment = session_pb2.SegmentOpen(
                sampling={role: sampling_to_proto(caller.sampling)}, outputs=["audio"], last=True
            )
            if role == TALKER and (history := caller.history) is not None:
                segment.history.CopyFrom(history_to_proto(history, (FRAMES,)))
            opening = session_pb2.SessionOpen(
                session_id=caller.session_id,
                routes=[routes[role]],
                windows=WINDOWS,
                first_segment=segment,
            )
            self.fleet.open_line(caller, host, opening)

    def _pick(self, role: str, caller: Caller) -> SimulatedStage:
        """Choose a running replica. The choice is deterministic for the same call and system
        state.
        """
        alive = self.fleet.alive(role)
        alive = [each for each in alive if not each.stands_still] or alive
        return alive[zlib.crc32(f"{role} {caller.session_id}".encode()) % len(alive)]

    def _read(self, stream: SimulatedStream) -> None:
        response, caller, role = stream.read(), stream.caller, stream.host.role
        ended = response is None and stream.line.is_over
        if ended:
            self.fleet.streams.remove(stream)
            if isinstance(stream.line.failure, WindowExceeded):
                self._check_overrun(stream)
        if caller.finished or caller.error:
            return
        if ended and isinstance(failure := stream.line.failure, AntiphonError):
            self._failed(caller, failure)
            return
        if ended:
            caller.progress.add_end(role)
        elif response is not None and not self._take(caller, role, response):
            return
        if caller.cancelled and caller.progress.complete:
            caller.finished = True
        if caller.finished or (not caller.cancelled and caller.finish_if_complete()):
            for each in self._streams_of(caller):
                each.half_close()

    def _take(self, caller: Caller, role: str, response: session_pb2.SessionResponse) -> bool:
        """Process a response. Returns whether the session continues."""
        match response.WhichOneof("message"):
            case "error":
                error = error_from_proto(response.error)
                lost = Unavailable(str(error)) if isinstance(error, Cancelled) else error
                self._failed(caller, lost)
                return False
            case "chunk":
                taken = caller.take(role, chunk_from_proto(response.chunk))
                if taken is not None:
                    self._taken[caller.session_id] = taken
            case "report":
                caller.report(role)
        return True

    def _check_overrun(self, stream: SimulatedStream) -> None:
        if stream.session_id not in self.fleet.overrun:
            raise Violation(f"{stream.host.name} overran the line of {stream.session_id}")

    def _failed(self, caller: Caller, error: AntiphonError) -> None:
        """Abandon the session and make another attempt if this is useful."""
        if not self.fleet.failed and caller.session_id not in self.fleet.overrun:
            raise Violation(f"{caller.name} failed although nothing did: {error}")
        for stream in self._streams_of(caller):
            self.fleet.leave(stream)
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
            cancel = session_pb2.CancelSegment(segment=0)
            stream.send(session_pb2.SessionRequest(cancel_segment=cancel))

    def _listen(self, caller: Caller) -> None:
        total = self._taken.pop(caller.session_id) + WINDOWS["audio"]
        credit = session_pb2.OutputCredit(edge="audio", segment=0, positions=total)
        for stream in self._streams_of(caller):
            if stream.host.role == VOCODER:
                stream.send(session_pb2.SessionRequest(credit=credit))

    def _streams_of(self, caller: Caller) -> list[SimulatedStream]:
        return [each for each in self.fleet.streams if each.session_id == caller.session_id]
