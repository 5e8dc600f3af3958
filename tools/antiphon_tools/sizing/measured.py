"""What was measured of a deployment's stages: the file that a plan is made from."""

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
    """One replica of a stage. A step takes `step_s`, by the sessions in it, plus `row_s`."""

    # What comes out of a step, one for each session: `tokens` of the text, `frames` of codes (as
    # many as tokens have come, at most), or the `audio` of all frames that wait.
    makes: Made
    # Sessions at a time.
    slots: Positive
    # Seconds of a step, by sessions in it: {1: 0.010, 32: 0.024}.
    step_s: Points
    # By how many seconds prompt rows make a step longer; of a stage that makes audio, frames.
    row_s: Points = {}
    # Most of these in a step.
    rows_per_step: Positive = 256
    # CPU seconds from a request to its prompt, beside the engine; and the steps that a session is
    # in before its rows are taken in. The next stage has the prompt after these.
    prepare_s: Seconds = 0.0
    steps_before: Annotated[int, msgspec.Meta(ge=0)] = 0
    # CPU seconds of the event loop for a message that it sends or takes.
    message_s: Seconds = 0.0
    # Output leaves at least so far apart.
    pace_s: Seconds = 0.0
    # How far the engine's thread stands back for others; of account where `cores` are shared.
    nice: Annotated[int, msgspec.Meta(ge=0, le=19)] = 0
    # GPUs of one replica; 0.5 for two stages on one, measured so.
    gpus: Seconds = 1.0

    @property
    def step_curve(self) -> Curve:
        """Seconds of a step by its sessions."""
        return Curve.of(self.step_s, "step_s")

    @property
    def row_curve(self) -> Curve:
        """Seconds more by its rows."""
        return Curve.of({0.0: 0.0, **self.row_s}, "row_s")


class MeasuredGateway(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One gateway and its bounds; the bounds as in the deployment's file."""

    # CPU seconds of its event loop for a call, before its stages have it, and for a message.
    call_s: Seconds = 0.003
    message_s: Seconds = 0.0002
    max_calls: Positive = 64
    max_waiting: Annotated[int, msgspec.Meta(ge=0)] = 256
    queue_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0


class MeasuredPipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Stages in the order of the pipeline, the gateway, and what is between them."""

    stages: Annotated[dict[str, MeasuredStage], msgspec.Meta(min_length=1)]
    gateway: MeasuredGateway = MeasuredGateway()
    # Where it was measured, for the reader.
    about: str = ""
    # Seconds of a message on its way between two processes.
    network_s: Seconds = 0.0005
    # CPU seconds of a client for a message; of account where `cores` are shared.
    client_message_s: Seconds = 0.0
    # Cores that all processes share; without it nobody waits for a core.
    cores: Annotated[float, msgspec.Meta(gt=0)] | None = None
    # Seconds of audio in a frame, and frames in a chunk of codes: first, ramp, steady.
    frame_s: Annotated[float, msgspec.Meta(gt=0)] = 0.08
    chunk_frames: tuple[Positive, ...] = (
        DEFAULT_CHUNK_POLICY.first,
        *DEFAULT_CHUNK_POLICY.ramp,
        DEFAULT_CHUNK_POLICY.steady,
    )

    @property
    def chunk_policy(self) -> ChunkPolicy:
        """`chunk_frames` as a policy."""
        first, *ramp = self.chunk_frames
        steady = ramp.pop() if ramp else first
        return ChunkPolicy(first=first, ramp=tuple(ramp), steady=steady)


def load_measured(path: Path) -> MeasuredPipeline:
    """Read and check a file. Raises `InvalidArgument` that names the field."""
    return read_yaml(path, measured_of, name=f"--measured {path}")


def measured_of(content: object) -> MeasuredPipeline:
    """Mappings as what was measured. Raises `InvalidArgument` that names the field."""
    try:
        measured = msgspec.convert(content, MeasuredPipeline, strict=False)
    except msgspec.ValidationError as error:
        words, _, where = str(error).partition(" - at `$")
        field = where.strip("`.").replace("[...]", ".<role>") or "measured"
        raise InvalidArgument(
            f"{field}: {words}; docs/sizing.md has an example", field=field
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
                f"stages.{role}.step_s: a step has at least one session; remove 0",
                field=f"stages.{role}.step_s",
            )
