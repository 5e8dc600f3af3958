"""Simulates a fleet of thousands of replicas at the call level, assuming that stages progress at
their measured rates.

Individual steps are not simulated. All sessions of a replica progress at the same rate, which
depends on the step time for the number of open sessions (`shared_rate.py`). A call's time to first
audio is the sum of the times spent in the gateway, on the prompt, on the first token, on the first
frame and on the first chunk. Each of these starts at a random point within one of the replica's
steps.

There can be many gateways. Each gateway has its own `AdmissionQueue`, which only contains its own
calls. It chooses replicas based on reports that are up to `report_s` old and on the number of its
own calls. If a replica is full, it rejects the call, and another one is tried.

A gateway's event loop spends part of its time on messages, so its work for each call takes
correspondingly longer.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from antiphon_gateway.admission.admission import (
    AdmissionQueue,
    AdmissionRequest,
    Decision,
    Granted,
    Urgency,
)
from antiphon_tools.sizing.curve import Curve
from antiphon_tools.sizing.measured import MeasuredPipeline, MeasuredStage
from antiphon_tools.sizing.offered import OfferedCall
from antiphon_tools.sizing.simulation.clock import SimulatedClock
from antiphon_tools.sizing.simulation.outcome import ANSWERED, FleetOutcome, RoleUse, SimulatedCall
from antiphon_tools.sizing.simulation.picking import pool_of
from antiphon_tools.sizing.simulation.shared_rate import SharedRateReplica
from antiphon_tools.sizing.simulation.steps import WAITING_BYTES, counted_span_s

REPORT_S = 0.1
TRIES = 3
"""The number of replicas of a role that are tried before a call goes back to its gateway's
queue.
"""
MOST_BUSY = 0.99
_ROUNDS = 6

Progress = Callable[[float, int], None]


class FluidFleet:
    """The simulated fleet. An instance can only be used once.

    `told` is called with the progress, as the simulated time in seconds and the number of calls.
    """

    def __init__(
        self,
        measured: MeasuredPipeline,
        replicas: Mapping[str, int],
        *,
        gateways: int = 1,
        seed: int = 0,
        report_s: float = REPORT_S,
        told: Progress = lambda now, calls: None,
    ) -> None:
        self._measured = measured
        self._random = random.Random(f"fluid {seed}")
        self._clock = SimulatedClock()
        self._report_s, self._told = report_s, told
        self._roles = list(measured.stages)
        self._fleet = {
            role: [self._replica(role, stage) for _ in range(replicas[role])]
            for role, stage in measured.stages.items()
        }
        self._slots = {
            role: stage.slots * replicas[role] for role, stage in measured.stages.items()
        }
        self._reported = {role: [0] * count for role, count in replicas.items()}
        self._gateways = [FluidGateway(self._clock, measured, replicas) for _ in range(gateways)]
        self._picking = self._gateways[0]
        self._pools = {
            role: pool_of(len(fleet), measured.stages[role].slots, self._load_of(role))
            for role, fleet in self._fleet.items()
        }
        self._wish = AdmissionRequest(roles=frozenset(self._roles), urgency=Urgency.AUDIO)
        self._calls: dict[int, SimulatedCall] = {}
        self._running: dict[int, FluidCall] = {}
        self._refused = self._most_in_flight = 0
        # The number of calls in progress, and whether all calls have arrived.
        self._left = 0
        self._all_came = False
        self._most_held = dict.fromkeys(self._roles, 0)
        self._held: Counter[str] = Counter()
        audio = measured.stages[self._roles[-1]]
        self._audio_step, self._audio_row = audio.step_curve, audio.row_curve

    def run(
        self, calls: Iterable[OfferedCall], warm_up_s: float = 0.0, ends_s: float = math.inf
    ) -> FleetOutcome:
        """Simulate all calls until they end. Utilization is measured from `warm_up_s` to
        `ends_s`.
        """
        self._clock.count(warm_up_s, ends_s)
        arrivals = iter(calls)
        self._arrive_next(arrivals)
        self._clock.after(self._report_s, self._report)
        self._clock.run()
        ended_at = max((call.ended_at or 0.0 for call in self._calls.values()), default=0.0)
        span_s = counted_span_s(warm_up_s, ends_s, ended_at)
        roles = {}
        for role, fleet in self._fleet.items():
            roles[role] = RoleUse(
                replicas=len(fleet),
                busy=sum(each.busy_s for each in fleet) / span_s / len(fleet),
                slots=sum(each.held_s for each in fleet) / span_s / self._slots[role],
                most_slots=self._most_held[role] / self._slots[role],
            )
        return FleetOutcome(
            calls=tuple(self._calls.values()),
            warm_up_s=warm_up_s,
            ended_at=ended_at,
            roles=roles,
            gateway_busy=max(each.busy_s for each in self._gateways) / span_s,
            most_in_flight=self._most_in_flight,
            picks_refused=self._refused,
            events=self._clock.events,
        )

    def _replica(self, role: str, stage: MeasuredStage) -> SharedRateReplica:
        def ended(number: int) -> None:
            self._made(number, role)

        return SharedRateReplica(self._clock, _position_curve(stage, self._measured), ended)

    # -- arrivals and admission --------------------------------------------------------

    def _arrive_next(self, arrivals: Iterable[OfferedCall]) -> None:
        offered = next(iter(arrivals), None)
        if offered is None:
            self._all_came = True
            return

        def arrive() -> None:
            call = self._calls[offered.number] = SimulatedCall(offered)
            self._left += 1
            gateway = self._gateways[offered.number % len(self._gateways)]
            in_s = gateway.delay_s()
            self._clock.after(in_s, lambda: self._ask(call, gateway))
            self._arrive_next(arrivals)

        self._clock.at(offered.at_s, arrive)

    def _ask(self, call: SimulatedCall, gateway: FluidGateway) -> None:
        number = call.offered.number
        now = self._clock.now
        self._decided(gateway, gateway.queue.ask(number, self._wish, self._slots, now))

    def _decided(self, gateway: FluidGateway, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            call = self._calls[decision.number]
            if isinstance(decision, Granted):
                self._begin(call, gateway)
            else:
                call.end(self._clock.now, decision.reason.value)
                self._left -= 1
        moment = gateway.queue.next_deadline() if gateway.queue.waiting else None
        if moment is not None and (gateway.wakes_at is None or moment < gateway.wakes_at):
            gateway.wakes_at = moment
            self._clock.at(moment, lambda: self._time_passed(gateway))

    def _time_passed(self, gateway: FluidGateway) -> None:
        gateway.wakes_at = None
        self._decided(gateway, gateway.queue.pass_time(self._clock.now))

    def _begin(self, call: SimulatedCall, gateway: FluidGateway) -> None:
        number, now = call.offered.number, self._clock.now
        picked: dict[str, int] = {}
        for role in self._roles:
            index = self._pick(role, gateway)
            if index is None:
                self._decided(gateway, gateway.queue.refused(number, role, now))
                return
            picked[role] = index
        call.granted_at = now
        running = self._running[number] = FluidCall(call, gateway, picked)
        for role, index in picked.items():
            gateway.own[role][index] += 1
            self._fleet[role][index].take()
            self._held[role] += 1
            self._most_held[role] = max(self._most_held[role], self._held[role])
        gateway.opened(call)
        self._most_in_flight = max(self._most_in_flight, len(self._running))
        self._decided(gateway, gateway.queue.opened(number, now))
        self._start(running)

    def _pick(self, role: str, gateway: FluidGateway) -> int | None:
        self._picking = gateway
        slots = self._measured.stages[role].slots
        full: set[int] = set()
        for _ in range(TRIES):
            pick = self._pools[role].pick(self._random, avoided=full)
            if pick is None:
                return None
            if self._fleet[role][pick.key].open < slots:
                return pick.key
            full.add(pick.key)
            self._refused += 1
        return None

    def _load_of(self, role: str) -> Callable[[int], float]:
        """Return a function that computes a replica's load, as seen by the gateway that is
        currently choosing a replica.

        It consists of the load that replicas have reported and the gateway's own calls.
        """
        return lambda number: self._reported[role][number] + self._picking.own[role][number]

    def _report(self) -> None:
        """Update the reported states of all replicas. Unchanged replicas report nothing new."""
        for role, fleet in self._fleet.items():
            self._reported[role] = [each.open for each in fleet]
        self._told(self._clock.now, len(self._calls))
        if self._left or not self._all_came:
            self._clock.after(self._report_s, self._report)

    # -- a call's way ------------------------------------------------------------------

    def _start(self, running: FluidCall) -> None:
        """Compute the times of the first token, frame and audio, and start the stages at these
        times.
        """
        offered, hop_s = running.call.offered, self._hop_s(running.gateway)
        moment = prompt_at = self._clock.now + hop_s
        first_frame_s = 0.0
        for role in self._roles:
            stage = self._measured.stages[role]
            replica = self._fleet[role][running.picked[role]]
            if stage.makes == "audio":
                moment += self._chunk_s(replica.open, first_frame_s)
                positions = float(offered.frames)
            else:
                step_s = first_frame_s = replica.position_s
                steps = math.ceil(offered.prompt_rows / stage.rows_per_step)
                prompt_at += stage.message_s + stage.prepare_s + stage.steps_before * step_s
                last_at = max(prompt_at, replica.prompt(stage.row_curve(offered.prompt_rows)))
                # The start and the end of the step that includes the last rows of the prompt.
                last_at += self._rest_s(replica) + (steps - 1) * step_s
                prompted_at = last_at + step_s
                prompt_at += hop_s
                if stage.makes == "tokens":
                    moment = max(moment, prompted_at)
                elif moment <= last_at:
                    # The same step also samples the first frame, because its input has already
                    # arrived.
                    moment = prompted_at
                elif moment > prompted_at:
                    moment += self._rest_s(replica) + step_s
                else:
                    moment = prompted_at + step_s
                positions = 1.0 + (offered.tokens if stage.makes == "tokens" else offered.frames)
            moment += stage.message_s + hop_s
            self._clock.at(moment, _beginning(replica, offered.number, positions - 1.0))
            if stage.makes == "tokens":
                running.call.first_text_at = moment
        running.call.first_audio_at = moment + self._measured.client_message_s

    def _rest_s(self, replica: SharedRateReplica) -> float:
        """Return the remaining time of the current step."""
        return self._random.random() * replica.position_s if replica.open > 1 else 0.0

    def _hop_s(self, gateway: FluidGateway) -> float:
        return self._measured.network_s + self._measured.gateway.message_s / (1 - gateway.busy)

    def _chunk_s(self, sessions: int, frame_s: float) -> float:
        """Return the time until the first chunk has been decoded.

        It consists of the rest of the current step, if one is in progress, and a full step. The
        number of chunks in a step is the number of chunks that arrive during a step, which is
        computed as a fixed point.
        """
        steady = self._measured.chunk_policy.steady
        chunks_per_s = sessions / (steady * frame_s) if frame_s else 0.0
        most = min(sessions, self._measured.stages[self._roles[-1]].rows_per_step / steady)
        together, step_s = 1.0, 0.0
        for _ in range(_ROUNDS):
            step_s = self._audio_step(together) + self._audio_row(together * steady)
            together = min(max(1.0, chunks_per_s * step_s), max(most, 1.0))
        busy = min(chunks_per_s * step_s / together, 1.0)
        own_s = self._audio_step(together) + self._audio_row((together - 1) * steady + 1)
        return busy * self._random.random() * step_s + own_s

    def _made(self, number: int, role: str) -> None:
        """Record that a stage has generated all positions. It ends after the previous stage has
        ended.
        """
        running = self._running[number]
        running.made.add(role)
        for each in self._roles:
            if each in running.ended:
                continue
            if each not in running.made:
                return
            running.ended.add(each)
            self._end(running, each)

    def _end(self, running: FluidCall, role: str) -> None:
        number, now = running.call.offered.number, self._clock.now
        index, gateway = running.picked[role], running.gateway
        self._fleet[role][index].close()
        gateway.own[role][index] -= 1
        self._held[role] -= 1
        self._decided(gateway, gateway.queue.freed(number, role, now))
        if role != self._roles[-1]:
            return
        running.call.end(max(now, running.call.first_audio_at or now), ANSWERED)
        del self._running[number]
        self._left -= 1
        gateway.closed(running.call)
        self._decided(gateway, gateway.queue.leave(number, now))


class FluidGateway:
    """A gateway, with its queue and its calls on each replica.

    `busy` is the current utilization of its event loop, and `busy_s` is its measured busy time.
    """

    def __init__(
        self, clock: SimulatedClock, measured: MeasuredPipeline, replicas: Mapping[str, int]
    ) -> None:
        bounds = measured.gateway
        self.queue = AdmissionQueue(
            max_calls=bounds.max_calls,
            max_waiting=bounds.max_waiting,
            max_waiting_bytes=WAITING_BYTES,
            longest_wait_s=bounds.queue_timeout_s,
        )
        self.own: dict[str, list[int]] = {role: [0] * count for role, count in replicas.items()}
        self.wakes_at: float | None = None
        self.busy = self.busy_s = 0.0
        self._clock = clock
        self._measured = measured
        self._free_at = 0.0
        self._load = 0.0
        self._mean_s = _mean_position_s(measured)

    def delay_s(self) -> float:
        """Return how long the event loop takes to process a call that arrives now."""
        now, call_s = self._clock.now, self._measured.gateway.call_s
        if self._clock.counts:
            self.busy_s += call_s
        self._free_at = max(self._free_at, now) + call_s / (1 - self.busy)
        return self._free_at - now

    def opened(self, call: SimulatedCall) -> None:
        """Add the messages of a call to the load."""
        self._change(self._messages_s(call) / self._alone_s(call))

    def closed(self, call: SimulatedCall) -> None:
        """Remove the messages of a call, which were spread over the time since its admission."""
        messages_s = self._messages_s(call)
        self._change(-messages_s / self._alone_s(call))
        now = self._clock.now
        since = now if call.granted_at is None else call.granted_at
        self.busy_s += messages_s * self._clock.counted_s(since, now) / max(now - since, 1e-9)

    def _messages_s(self, call: SimulatedCall) -> float:
        """Return the number of seconds for which a call's messages occupy the event loop."""
        return messages_of(call.offered, self._measured) * self._measured.gateway.message_s

    def _alone_s(self, call: SimulatedCall) -> float:
        """Return the approximate duration of a call without other load, including its messages."""
        return max(call.offered.frames * self._mean_s, 1e-3)

    def _change(self, by: float) -> None:
        self._load += by
        self.busy = min(max(self._load, 0.0), MOST_BUSY)


class FluidCall:
    """A call, with its segments' replicas and the sets of segments that are complete or have
    ended.
    """

    __slots__ = ("call", "ended", "gateway", "made", "picked")

    def __init__(self, call: SimulatedCall, gateway: FluidGateway, picked: dict[str, int]) -> None:
        self.call, self.gateway, self.picked = call, gateway, picked
        self.made: set[str] = set()
        self.ended: set[str] = set()


def messages_of(offered: OfferedCall, measured: MeasuredPipeline) -> float:
    """Return the number of messages of a call that pass through its gateway.

    They are text messages, as limited by the pace, and chunks of audio.
    """
    chunks = list(measured.chunk_frames)
    ramp, steady = sum(chunks[:-1]), chunks[-1]
    audio = len(chunks) - 1 + max(0.0, offered.frames - ramp) / steady
    texts = 0.0
    for stage in measured.stages.values():
        if stage.makes == "tokens":
            token_s = max(stage.step_curve(stage.slots / 2), stage.pace_s)
            texts = offered.tokens * stage.step_curve(stage.slots / 2) / token_s
    return audio + texts


def _mean_position_s(measured: MeasuredPipeline) -> float:
    frames = next(each for each in measured.stages.values() if each.makes == "frames")
    return frames.step_curve(frames.slots / 2)


def _position_curve(stage: MeasuredStage, measured: MeasuredPipeline) -> Curve:
    """Return the time per position by number of open sessions.

    For a stage that processes chunks, it is a fraction of the step time.
    """
    if stage.makes != "audio":
        return stage.step_curve
    steady = measured.chunk_policy.steady
    step, row = stage.step_curve, stage.row_curve
    xs: Sequence[float] = sorted({1.0, *stage.step_s, float(stage.slots)})
    ys = []
    for n in xs:
        frames = max(1.0, min(stage.rows_per_step, n * steady) / n)
        ys.append((step(n) + row(frames * n)) / frames)
    return Curve(tuple(xs), tuple(ys))


def _beginning(replica: SharedRateReplica, number: int, positions: float) -> Callable[[], None]:
    return lambda: replica.begin(number, positions)
