"""Simulates a fleet with several hundred concurrent calls, including every step and message.

When a call arrives, it uses `call_s` of the gateway's event loop and enters the gateway's own
`AdmissionQueue`. Once admitted, it holds a slot on one replica of each stage. This replica is the
better of two random choices. Its prompt is sent to all stages that read one. Tokens, frames and
audio are then sent as the stages generate them, and every message is processed by the event loops
along its path. The call ends when the client has received its last message.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from antiphon_gateway.admission.admission import (
    AdmissionQueue,
    AdmissionRequest,
    Decision,
    Granted,
    Urgency,
)
from antiphon_tools.sizing.measured import MeasuredPipeline
from antiphon_tools.sizing.offered import OfferedCall
from antiphon_tools.sizing.simulation.clock import SimulatedClock
from antiphon_tools.sizing.simulation.outcome import ANSWERED, FleetOutcome, RoleUse, SimulatedCall
from antiphon_tools.sizing.simulation.picking import pool_of
from antiphon_tools.sizing.simulation.processor import SerialThread, SharedCores
from antiphon_tools.sizing.simulation.replica import StageReplica, StageSegment

WAITING_BYTES = 1 << 30


class FleetSimulation:
    """The simulated fleet, as described in the module docstring. An instance can only be used
    once.
    """

    def __init__(
        self, measured: MeasuredPipeline, replicas: Mapping[str, int], seed: int = 0
    ) -> None:
        self._measured = measured
        self._clock = SimulatedClock()
        self._random = random.Random(f"picks {seed}")
        self._cores = SharedCores(self._clock, measured.cores or math.inf)
        bounds = measured.gateway
        self._queue = AdmissionQueue(
            max_calls=bounds.max_calls,
            max_waiting=bounds.max_waiting,
            max_waiting_bytes=WAITING_BYTES,
            longest_wait_s=bounds.queue_timeout_s,
        )
        self._gateway = SerialThread(self._cores)
        self._client = SerialThread(self._cores)
        self._slots = {
            role: stage.slots * replicas[role] for role, stage in measured.stages.items()
        }
        self._wish = AdmissionRequest(roles=frozenset(measured.stages), urgency=Urgency.AUDIO)
        self._roles = list(measured.stages)
        self._fleet = {role: self._replicas(role, replicas[role]) for role in self._roles}
        self._pools = {
            role: pool_of(len(fleet), measured.stages[role].slots, _open_of(fleet))
            for role, fleet in self._fleet.items()
        }
        self._calls: dict[int, SimulatedCall] = {}
        self._running: dict[int, StepwiseCall] = {}
        self._wakes_at: float | None = None
        self._held_s = dict.fromkeys(self._roles, 0.0)
        self._most_held = dict.fromkeys(self._roles, 0)
        self._most_in_flight = 0
        self._refused = 0

    def run(
        self, calls: Iterable[OfferedCall], warm_up_s: float = 0.0, ends_s: float = math.inf
    ) -> FleetOutcome:
        """Simulate all calls until they end. Utilization is measured from `warm_up_s` to
        `ends_s`.
        """
        self._clock.count(warm_up_s, ends_s)
        for offered in calls:
            call = self._calls[offered.number] = SimulatedCall(offered)
            self._clock.at(offered.at_s, lambda call=call: self._arrive(call))  # type: ignore[misc]
        self._clock.run()
        ended_at = self._clock.now
        counted_s = counted_span_s(warm_up_s, ends_s, ended_at)
        roles = {}
        for role, fleet in self._fleet.items():
            span_s = counted_s * len(fleet)
            roles[role] = RoleUse(
                replicas=len(fleet),
                busy=sum(each.engine.busy_s for each in fleet) / span_s,
                slots=self._held_s[role] / span_s / self._measured.stages[role].slots,
                most_slots=self._most_held[role] / self._slots[role],
            )
        return FleetOutcome(
            calls=tuple(self._calls.values()),
            warm_up_s=warm_up_s,
            ended_at=ended_at,
            roles=roles,
            gateway_busy=self._gateway.busy_s / counted_s,
            most_in_flight=self._most_in_flight,
            picks_refused=self._refused,
            events=self._clock.events,
        )

    def _replicas(self, role: str, count: int) -> list[StageReplica]:
        place = self._roles.index(role)
        stages = self._measured.stages
        follows = stages[self._roles[place - 1]].makes if place else None

        def deliver(segment: StageSegment, positions: int, last: bool) -> None:
            self._deliver(place, segment, positions, last=last)

        policy = self._measured.chunk_policy
        return [
            StageReplica(self._clock, stages[role], self._cores, policy, follows, deliver)
            for _ in range(count)
        ]

    # -- the gateway -------------------------------------------------------------------

    def _arrive(self, call: SimulatedCall) -> None:
        def asked() -> None:
            number = call.offered.number
            self._decided(self._queue.ask(number, self._wish, self._slots, self._clock.now))

        self._gateway.work(self._measured.gateway.call_s, asked)

    def _decided(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            call = self._calls[decision.number]
            if isinstance(decision, Granted):
                self._begin(call)
            else:
                call.end(self._clock.now, decision.reason.value)
        moment = self._queue.next_deadline()
        if moment is not None and (self._wakes_at is None or moment < self._wakes_at):
            self._wakes_at = moment
            self._clock.at(moment, self._time_passed)

    def _time_passed(self) -> None:
        self._wakes_at = None
        self._decided(self._queue.pass_time(self._clock.now))

    def _begin(self, call: SimulatedCall) -> None:
        number, now = call.offered.number, self._clock.now
        picked: dict[str, StageReplica] = {}
        for role, fleet in self._fleet.items():
            pick = self._pools[role].pick(self._random)
            assert pick is not None
            index = pick.key
            if fleet[index].full:
                self._refused += 1
                free = [each for each in fleet if not each.full]
                if not free:
                    self._decided(self._queue.refused(number, role, now))
                    return
                picked[role] = min(free, key=lambda each: each.open)
            else:
                picked[role] = fleet[index]
        call.granted_at = now
        self._most_in_flight = max(self._most_in_flight, self._queue.calls)
        running = self._running[number] = StepwiseCall(call, picked)
        for role, replica in reversed(picked.items()):
            self._open(running, role, replica)
        self._decided(self._queue.opened(number, now))

    def _open(self, running: StepwiseCall, role: str, replica: StageReplica) -> None:
        """Open a segment on a replica.

        The slot is reserved immediately. Work starts when the message and the prompt have arrived.
        """
        offered, stage = running.call.offered, self._measured.stages[role]
        outputs = offered.tokens if stage.makes == "tokens" else offered.frames
        rows = 0 if stage.makes == "audio" else offered.prompt_rows
        place = self._roles.index(role)
        segment = StageSegment(running.call, rows, outputs, stage.steps_before, prompted=False)
        running.segments[role] = segment
        since = self._clock.now
        held = self._most_held[role] = max(self._most_held[role], self._queue.held(role))
        assert held <= self._slots[role]

        def released() -> None:
            self._held_s[role] += self._clock.counted_s(since, self._clock.now)
            self._decided(self._queue.freed(offered.number, role, self._clock.now))

        segment.release = released
        if stage.makes == "tokens":
            segment.begun = lambda: self._prompt(running, place + 1)
        replica.admit(segment)
        if not place:
            self._prompt(running, place)

    def _prompt(self, running: StepwiseCall, place: int) -> None:
        """Send the prompt to a stage.

        It is then passed on to the next stage, unless that stage waits for more input.
        """
        role = self._roles[place]
        stage, replica = self._measured.stages[role], running.picked[role]

        def arrived() -> None:
            replica.loop.work(stage.message_s, prepared)
            if stage.makes == "tokens" and not stage.steps_before:
                self._prompt(running, place + 1)

        def prepared() -> None:
            self._cores.work(stage.prepare_s, lambda: replica.prompt(running.segments[role]))

        self._clock.after(self._measured.network_s, arrived)

    # -- messages ----------------------------------------------------------------------

    def _deliver(self, place: int, segment: StageSegment, count: int, *, last: bool) -> None:
        """Send the output of a stage to the next stage. Text and audio are sent to the client."""
        role = self._roles[place]
        stage = self._measured.stages[role]
        running = self._running[segment.call.offered.number]
        loop = running.picked[role].loop
        makes = stage.makes

        def sent() -> None:
            if makes != "frames":
                self._to_client(running, makes, count, last=last)
            if makes != "audio":
                self._to_stage(running, place + 1, count, last=last)

        loop.work(stage.message_s, sent)

    def _to_stage(self, running: StepwiseCall, place: int, count: int, *, last: bool) -> None:
        role = self._roles[place]
        replica, segment = running.picked[role], running.segments[role]

        def arrived() -> None:
            replica.loop.work(
                self._measured.stages[role].message_s,
                lambda: replica.feed(segment, count, complete=last),
            )

        self._clock.after(self._measured.network_s, arrived)

    def _to_client(self, running: StepwiseCall, makes: str, count: int, *, last: bool) -> None:
        def arrived() -> None:
            self._gateway.work(self._measured.gateway.message_s, passed_on)

        def passed_on() -> None:
            self._client.work(self._measured.client_message_s, read)

        def read() -> None:
            call, now = running.call, self._clock.now
            if count and makes == "tokens" and call.first_text_at is None:
                call.first_text_at = now
            if count and makes == "audio" and call.first_audio_at is None:
                call.first_audio_at = now
            if last and makes == "audio":
                call.end(now, ANSWERED)
                del self._running[call.offered.number]
                self._decided(self._queue.leave(call.offered.number, now))

        self._clock.after(self._measured.network_s, arrived)


def counted_span_s(warm_up_s: float, ends_s: float, ended_at: float) -> float:
    """Return the duration for which utilization is measured.

    It ends with the load or, if the load has no end, with the last call.
    """
    return max((ended_at if math.isinf(ends_s) else ends_s) - warm_up_s, 1e-9)


class StepwiseCall:
    """A call with its segments and their replicas."""

    def __init__(self, call: SimulatedCall, picked: dict[str, StageReplica]) -> None:
        self.call = call
        self.picked = picked
        self.segments: dict[str, StageSegment] = {}


def _open_of(fleet: Sequence[StageReplica]) -> Callable[[int], float]:
    return lambda number: fleet[number].open
