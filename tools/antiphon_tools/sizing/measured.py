"""The measurements of a deployment's stages, on which a plan is based."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from antiphon.deployment.yaml_file import read_yaml
from antiphon.errors import InvalidArgument
from antiphon.pipelines.graph import DEFAULT_CHUNK_POLICY
from antiphon.values.segment import ChunkPolicy
from antiphon_tools.sizing.curve import Curve

Seconds = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Points = dict[float, Seconds]
Made = Literal["tokens", "frames", "audio"]


class MeasuredStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A replica of a stage. `step_s` is the duration of a step by number of sessions.

    The time from `row_s` is added to it.
    """

    # The output of a step for each session. A stage generates either `tokens` of the text, `frames`
    # of codes (up to the number of tokens it has received), or the `audio` of all waiting frames.
    makes: Made
    # The maximum number of concurrent sessions.
    slots: Positive
    # The duration of a step in seconds, by number of sessions: {1: 0.010, 32: 0.024}.
    step_s: Points
    # The additional duration of a step in seconds, by number of prompt rows. For a stage that
    # generates audio, by number of frames.
    row_s: Points = {}
    # The maximum number of these rows or frames in a step.
    rows_per_step: Positive = 256
    # `prepare_s` is the CPU time in seconds to prepare a prompt, outside of the engine.
    # `steps_before` is the number of steps of a session before its rows are processed. The next
    # stage receives the prompt after these steps.
    prepare_s: Seconds = 0.0
    steps_before: Annotated[int, msgspec.Meta(ge=0)] = 0
    # The CPU time of the event loop, in seconds, for each message that it sends or receives.
    message_s: Seconds = 0.0
    # The minimum interval between output messages in seconds.
    pace_s: Seconds = 0.0
    # The niceness of the engine thread. It is only relevant if `cores` are shared.
    nice: Annotated[int, msgspec.Meta(ge=0, le=19)] = 0
    # The number of GPUs per replica. It is 0.5 if two stages shared a GPU when they were measured.
    gpus: Seconds = 1.0

    @property
    def step_curve(self) -> Curve:
        """The duration of a step in seconds, by number of sessions."""
        return Curve.of(self.step_s, "step_s")

    @property
    def row_curve(self) -> Curve:
        """The additional duration in seconds, by number of rows."""
        return Curve.of({0.0: 0.0, **self.row_s}, "row_s")


class MeasuredGateway(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A gateway and its limits. The limits have the same names as in the deployment file."""

    # The CPU time of the event loop in seconds, for each call before it reaches its stages and for
    # each message.
    call_s: Seconds = 0.003
    message_s: Seconds = 0.0002
    max_calls: Positive = 64
    max_waiting: Annotated[int, msgspec.Meta(ge=0)] = 256
    queue_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0


class MeasuredPipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The stages in the order of the pipeline, the gateway, and the connections between them."""

    stages: Annotated[dict[str, MeasuredStage], msgspec.Meta(min_length=1)]
    gateway: MeasuredGateway = MeasuredGateway()
    # A description of the measured system, for readers of the file.
    about: str = ""
    # The transmission time of a message between two processes, in seconds.
    network_s: Seconds = 0.0005
    # The CPU time of a client per message, in seconds. It is only relevant if `cores` are shared.
    client_message_s: Seconds = 0.0
    # The number of cores that all processes share. If it is not set, processes never wait for a
    # core.
    cores: Annotated[float, msgspec.Meta(gt=0)] | None = None
    # The duration of a frame in seconds, and the number of frames in a chunk of codes: first, ramp,
    # steady.
    frame_s: Annotated[float, msgspec.Meta(gt=0)] = 0.08
    chunk_frames: tuple[Positive, ...] = (
        DEFAULT_CHUNK_POLICY.first,
        *DEFAULT_CHUNK_POLICY.ramp,
        DEFAULT_CHUNK_POLICY.steady,
    )

    @property
    def chunk_policy(self) -> ChunkPolicy:
        """The chunk policy that `chunk_frames` describes."""
        first, *ramp = self.chunk_frames
        steady = ramp.pop() if ramp else first
        return ChunkPolicy(first=first, ramp=tuple(ramp), steady=steady)


def load_measured(path: Path) -> MeasuredPipeline:
    """Read and validate a file. Raises `InvalidArgument` with the name of the field."""
    return read_yaml(path, measured_of, name=f"--measured {path}")


def measured_of(content: object) -> MeasuredPipeline:
    """Convert and validate mappings. Raises `InvalidArgument` with the name of the field."""
    try:
        measured = msgspec.convert(content, MeasuredPipeline, strict=False)
    except msgspec.ValidationError as error:
        words, _, where = str(error).partition(" - at `$")
        field = where.strip("`.").replace("[...]", ".<role>") or "measured"
        raise InvalidArgument(
            f"{field}: {words}; for an example, see docs/sizing.md", field=field
        ) from error
    _check(measured)
    return measured


def _check(measured: MeasuredPipeline) -> None:
    made = [stage.makes for stage in measured.stages.values()]
    order = [kind for kind in ("tokens", "frames", "audio") if kind in made]
    if made != order or not {"frames", "audio"} <= set(made):
        raise InvalidArgument(
            f"stages: make {', '.join(made)}; give each of the pipeline's stages once and in its "
            "order: tokens (unless the model reads aloud), frames, audio",
            field="stages",
        )
    for role, stage in measured.stages.items():
        for name, points in (("step_s", stage.step_s), ("row_s", {0.0: 0.0, **stage.row_s})):
            field = f"stages.{role}.{name}"
            Curve.of(points, field)
        if 0 in stage.step_s:
            raise InvalidArgument(
                f"stages.{role}.step_s: a step must have at least one session; remove 0",
                field=f"stages.{role}.step_s",
            )
