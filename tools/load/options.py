"""What a load test is to do: the command line, checked."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from antiphon.deployment.schema import Deployment, load_deployment
from antiphon.errors import InvalidArgument
from antiphon.pipelines.graph import DEFAULT_CHUNK_POLICY
from antiphon.pipelines.qwen3_omni import CODE2WAV, TALKER, THINKER
from antiphon.segment import ChunkPolicy, Delivery
from tools.launcher.plan import GATEWAY, with_overrides
from tools.load.command_line import DEFAULT_RATE, SERVICES, command_line
from tools.load.content import Content
from tools.load.objectives import Objective
from tools.load.run import Load

DEFAULT_OBJECTIVES = {
    THINKER: ("ttft=1",),
    TALKER: ("ttfa=1", "underrun=0.1"),
    CODE2WAV: ("ttfa=1", "underrun=0.1"),
    GATEWAY: ("ttfa=1", "underrun=0.1"),
}
SINGLE_FRAMES = ChunkPolicy(first=1, ramp=(), steady=1)


@dataclass(frozen=True, slots=True)
class Options:
    """What a load test is to do. `record` is set for a recording, with no `service`.

    `deployment` is what is started when `target` is empty.
    """

    service: str
    load: Load
    content: Content
    objectives: tuple[Objective, ...]
    target: str
    deployment: Deployment
    tiny: bool
    door: Literal["http", "grpc"]
    paced: bool
    tokens_per_s: float
    frames_per_s: float
    groups: ChunkPolicy
    timeout_s: float
    record: Path | None
    replay: Path | None
    find_capacity: bool
    wanted_goodput: float
    max_trials: int
    resolution: float
    json: Path | None
    html: Path | None

    def settings(self) -> dict[str, Any]:
        """Everything that shapes the result, for the report."""
        load = {name: value for name, value in asdict(self.load).items() if value is not None}
        content = msgspec.to_builtins(self.content)
        content["prompts"] = len(self.content.prompts)
        own = {
            "target": self.target,
            "model": "tiny, random weights" if self.tiny else self.deployment.model,
            "door": self.door if self.service == GATEWAY else "",
            "pace": "real time" if self.paced else "flat out",
            "replay": str(self.replay or ""),
            "timeout_s": self.timeout_s,
        }
        return {**{name: value for name, value in own.items() if value}, **load, **content}


def read_options(arguments: Sequence[str] | None = None) -> Options:
    """Parse the command line. Raises `InvalidArgument`; ends the process on `--help`."""
    given = command_line().parse_args(arguments)
    if bool(given.service) == bool(given.record):
        raise InvalidArgument(f"say what to load, one of {', '.join(SERVICES)}; or --record FILE")
    if given.record and given.target:
        raise InvalidArgument("--record starts what it records: it takes no --target")
    if given.service != GATEWAY and "://" in given.target:
        raise InvalidArgument(
            f"--target {given.target}: that is a gateway's HTTP door; a {given.service}'s is "
            "host:port, where it serves gRPC"
        )
    if given.service == TALKER and given.target and not (given.model or given.replay):
        raise InvalidArgument(
            "a talker's prompts need the checkpoint's special ids: give --model DIR, where it "
            "lies, or --replay FILE"
        )
    paced = given.pace == "real"
    return Options(
        service=given.service or "",
        load=_load(given),
        content=_content(given),
        objectives=_objectives(given),
        target=given.target,
        deployment=_deployment(given),
        tiny=not (given.target or given.model or given.config),
        door="grpc" if given.target and "://" not in given.target else given.door,
        paced=paced,
        tokens_per_s=given.token_rate,
        frames_per_s=given.frame_rate,
        groups=given.chunk_frames or (SINGLE_FRAMES if paced else DEFAULT_CHUNK_POLICY),
        timeout_s=given.timeout,
        record=given.record,
        replay=given.replay,
        find_capacity=given.find_capacity,
        wanted_goodput=given.goodput,
        max_trials=given.max_trials,
        resolution=given.resolution,
        json=given.json,
        html=given.html,
    )


def _load(given: argparse.Namespace) -> Load:
    rate = DEFAULT_RATE if given.rate is None and given.sessions is None else given.rate
    return Load(
        rate=rate,
        sessions=given.sessions,
        seconds=given.seconds,
        warm_up_s=given.warm_up,
        drain_s=given.drain,
        max_open=given.max_open,
        seed=given.seed,
    )


def _content(given: argparse.Namespace) -> Content:
    return Content(
        prompt_length=given.prompt_length,
        reply_tokens=given.reply_tokens,
        frames=given.frames,
        prompts=_prompts(given.prompts) if given.prompts else (),
        voice=given.voice,
        outputs=("text",) if given.text_only else ("text", "audio"),
        delivery=Delivery(given.delivery) if given.delivery else None,
        chunk_policy=given.chunk_frames,
    )


def _prompts(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"--prompts {path}: {error}") from error
    prompts = tuple(line for line in lines if line.strip())
    if not prompts:
        raise InvalidArgument(f"--prompts {path}: has no prompts")
    return prompts


def _objectives(given: argparse.Namespace) -> tuple[Objective, ...]:
    texts = given.slo or DEFAULT_OBJECTIVES.get(given.service, ())
    if given.text_only and not given.slo:
        texts = DEFAULT_OBJECTIVES[THINKER]
    return tuple(Objective.parse(text) for text in texts)


def _deployment(given: argparse.Namespace) -> Deployment:
    deployment = load_deployment(given.config) if given.config else Deployment()
    if given.model:
        deployment = msgspec.structs.replace(deployment, model=str(given.model))
    return with_overrides(deployment, given.stage)
