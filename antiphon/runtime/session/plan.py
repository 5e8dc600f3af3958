"""The fixed configuration of a stage and validated requests for sessions and segments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from antiphon.deployment.schema import GatewayConfig, StageConfig
from antiphon.errors import InvalidArgument
from antiphon.pipelines.graph import CLIENT, SAMPLE, Edge, Pipeline
from antiphon.runtime.engine import SegmentSettings
from antiphon.runtime.session.instructions import Destination
from antiphon.values.chunk import MAX_NAME
from antiphon.values.history import FRAMES, IDS, LATENTS, History
from antiphon.values.options import Option, OptionValue
from antiphon.values.sampling import Sampling, SamplingRequest
from antiphon.values.segment import ChunkPolicy, Delivery

MAX_WINDOW = 1 << 32
"""The maximum credit window in positions. It corresponds to years of audio, but keeps totals small
enough for their message fields.
"""
HOLD_TIMEOUT_S = 10.0
"""The time, in seconds, for which a chunk is held if its session hasn't been opened yet."""
MAX_SECONDS = 366 * 86_400.0
MAX_DESTINATIONS = 16
MAX_ADDRESS = 256
MAX_OPTIONS = 64


@dataclass(frozen=True, slots=True)
class StageLimits:
    """The limits of a stage. They apply to the number of open segments and sessions, to times in
    seconds, and to sizes in bytes.
    """

    slots: int
    stall_timeout_s: float
    hold_timeout_s: float
    hold_bytes: int
    max_sessions: int = 1024
    idle_session_timeout_s: float = 600.0

    @classmethod
    def of(cls, config: StageConfig, gateway: GatewayConfig) -> StageLimits:
        """Return the limits set by a deployment.

        `idle_session_timeout_s` is raised to the request timeout if it is shorter. A stage that has
        finished its part of a request is idle until the other stages have finished theirs, so a
        session must be allowed to idle for that long.
        """
        return cls(
            slots=config.slots,
            stall_timeout_s=config.sessions.stall_timeout_s,
            hold_timeout_s=HOLD_TIMEOUT_S,
            hold_bytes=config.sessions.hold_bytes,
            max_sessions=config.sessions.max_sessions,
            idle_session_timeout_s=max(
                config.sessions.idle_session_timeout_s, gateway.limits.request_timeout_s
            ),
            live_input_timeout_s=config.sessions.live_input_timeout_s,
        )

    progress_s: float = 1.0
    steps_s: float = 0.1
    live_input_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The part of the pipeline that a stage implements, together with its defaults and limits."""

    role: str
    inputs: Mapping[str, Edge]
    outputs: Mapping[str, Edge]
    delivery: Mapping[str, Delivery]
    policy: ChunkPolicy
    sampling: Sampling
    limits: StageLimits
    options: Mapping[str, Option] = field(default_factory=dict)
    goes_on_from: tuple[str, ...] = ()
    # The number of positions per second for each output that clients play back.
    rates: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        role: str,
        sampling: Sampling,
        limits: StageLimits,
        delivery: Mapping[str, Delivery] | None = None,
        sample_rate_hz: int = 0,
        goes_on_from: tuple[str, ...] = (),
    ) -> StagePlan:
        """Return the plan for the stage with the given role.

        `delivery` overrides the pipeline's delivery for the edges it contains. `sample_rate_hz` is
        the sample rate of the generated audio, or 0 if the stage doesn't generate audio. See
        `StageFacts` for `goes_on_from`.
        """
        rates = {
            edge.name: edge.rate_hz or sample_rate_hz * (edge.unit == SAMPLE)
            for edge in pipeline.outputs(role)
            if CLIENT in edge.consumers
        }
        return cls(
            role=role,
            inputs={edge.name: edge for edge in pipeline.inputs(role)},
            outputs={edge.name: edge for edge in pipeline.outputs(role)},
            delivery={edge.name: edge.delivery for edge in pipeline.edges} | dict(delivery or {}),
            policy=pipeline.chunk_policy,
            sampling=sampling,
            limits=limits,
            options={option.name: option for option in pipeline.stage(role).options},
            goes_on_from=goes_on_from,
            rates={name: rate_hz for name, rate_hz in rates.items() if rate_hz},
        )

    def check(self, request: SessionRequest) -> None:
        """Raise `InvalidArgument` if this stage doesn't support one of the routes or windows."""
        if unknown := sorted(set(request.routes) - set(self.outputs)):
            raise InvalidArgument(
                f"routes: {self.role} has no output {', '.join(unknown)}", field="routes"
            )
        for name, destinations in request.routes.items():
            lengths = [max(len(each.address), len(each.boot_id)) for each in destinations]
            if len(lengths) > MAX_DESTINATIONS or max(lengths, default=0) > MAX_ADDRESS:
                raise InvalidArgument(
                    f"routes.{name}: must have at most {MAX_DESTINATIONS} destinations, with "
                    f"addresses and boot IDs of at most {MAX_ADDRESS} characters",
                    field=f"routes.{name}",
                )
        for name, window in request.windows.items():
            field = f"windows.{name}"
            edge = self.inputs.get(name) or self.outputs.get(name)
            if not 1 <= window <= MAX_WINDOW:
                raise InvalidArgument(f"{field}: must be from 1 to {MAX_WINDOW}", field=field)
            if edge is not None and not edge.governed:
                raise InvalidArgument(f"{field}: this edge doesn't use credit", field=field)

    def live_outputs(
        self, request: SegmentRequest, routes: Mapping[str, tuple[Destination, ...]]
    ) -> list[Edge]:
        """Return the output edges that have a destination. An edge to the client is included only
        if it was requested.
        """
        return [
            edge
            for name, edge in self.outputs.items()
            if routes.get(name) and (edge.consumers != (CLIENT,) or name in request.outputs)
        ]

    def settings(self, request: SegmentRequest, outputs: frozenset[str]) -> SegmentSettings:
        """Return the engine settings for a segment whose request has been validated."""
        return SegmentSettings(
            request.voice,
            self.sampling.with_request(request.sampling).keyed(self.role, request.choice),
            outputs,
            request.options,
            request.live,
            request.history,
            frozenset(
                name for name in self.inputs if self.delivery_of(name, request) is Delivery.WHOLE
            ),
            request.sampling,
        )

    def delivery_of(self, edge: str, request: SegmentRequest) -> Delivery:
        """Return how an edge of a segment is delivered. This is the requested delivery or the
        default.
        """
        return request.delivery.get(edge) or self.delivery[edge]

    def check_segment(self, request: SegmentRequest) -> None:
        """Raise `InvalidArgument` if this stage doesn't support one of the options, or
        the history.
        """
        self._check_options(request.options)
        history = request.history
        if history is None:
            return
        if request.live:
            raise InvalidArgument(
                "history: is not supported for live segments; open a segment whose input is "
                "complete",
                field="history",
            )
        parts = ((IDS, history.ids), (FRAMES, history.frames), (LATENTS, history.latents))
        for kind, brought in parts:
            if len(brought) and kind not in self.goes_on_from:
                known = ", ".join(self.goes_on_from) or "nothing"
                raise InvalidArgument(
                    f"history.{kind}: {self.role} can't continue from {kind}; it accepts: "
                    f"{known}; leave it out",
                    field=f"history.{kind}",
                )

    def _check_options(self, values: Mapping[str, OptionValue]) -> None:
        """Raise `InvalidArgument` if an option is unknown or has an invalid value."""
        for name, value in values.items():
            option = self.options.get(name)
            if option is None:
                field = f"options.{name}"
                known = ", ".join(self.options) or "none"
                raise InvalidArgument(
                    f"{field}: {self.role} has no such option; its options are {known}", field=field
                )
            option.check(value)


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A request to open a session on this stage.

    If `stall_timeout_s` is 0, the stage's default applies. `windows` contains the credit window in
    positions for each governed edge and applies to the whole session. Edges without a window aren't
    limited. Raises `InvalidArgument` if a time is out of range, or if the ID is empty or too long.
    """

    session_id: str
    routes: Mapping[str, tuple[Destination, ...]]
    stall_timeout_s: float = 0.0
    windows: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_seconds("open.limits.stall_timeout_s", self.stall_timeout_s)
        if not 1 <= len(self.session_id) <= MAX_NAME:
            raise InvalidArgument(
                f"open.session_id: must have 1 to {MAX_NAME} characters, got "
                f"{len(self.session_id)}",
                field="open.session_id",
            )


@dataclass(frozen=True, slots=True)
class SegmentRequest:
    """A request to open a segment. It contains only what this stage needs.

    If `deadline_s` is 0, there is no deadline. If the segment is the `last` one, the session
    doesn't accept any others. If it is `live`, its input arrives while it is still being recorded.
    `history` is the beginning of the output, which the client already has. A request can ask for
    several answers, which are sampled independently. In this case, `choice` is the number of this
    answer.

    Raises `InvalidArgument` if the deadline is out of range, the name of the voice is too long, or
    there are too many options.
    """

    segment: int
    sampling: SamplingRequest
    voice: str
    outputs: frozenset[str]
    delivery: Mapping[str, Delivery]
    policy: ChunkPolicy | None = None
    deadline_s: float = 0.0
    last: bool = False
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    live: bool = False
    history: History | None = None
    choice: int = 0

    def __post_init__(self) -> None:
        _check_seconds("deadline_s", self.deadline_s)
        if len(self.voice) > MAX_NAME:
            raise InvalidArgument(
                f"voice: must have at most {MAX_NAME} characters, got {len(self.voice)}",
                field="voice",
            )
        if len(self.options) > MAX_OPTIONS:
            raise InvalidArgument(
                f"options: must have at most {MAX_OPTIONS} entries, got {len(self.options)}",
                field="options",
            )


def _check_seconds(name: str, seconds: float) -> None:
    """Raise `InvalidArgument` if the number of seconds would corrupt the timer heap, as NaN
    would.
    """
    if not (math.isfinite(seconds) and 0.0 <= seconds <= MAX_SECONDS):
        raise InvalidArgument(
            f"{name}: must be from 0 (the default) to {MAX_SECONDS:.0f} seconds, got {seconds:g}",
            field=name,
        )
