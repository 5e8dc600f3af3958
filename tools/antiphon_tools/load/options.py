"""The validated options of a load test."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from antiphon.deployment.schema import Deployment, load_deployment
from antiphon.errors import InvalidArgument
from antiphon.values.segment import Delivery
from antiphon_tools.hub.deployment import with_directories
from antiphon_tools.hub.settings import hub_settings
from antiphon_tools.launcher.plan import GATEWAY, application_root, resolve, with_overrides
from antiphon_tools.load.command_line import DEFAULT_RATE, command_line
from antiphon_tools.load.content import TEXT, Content
from antiphon_tools.load.objectives import Objective
from antiphon_tools.load.request_options import read_given
from antiphon_tools.load.run import Load
from antiphon_tools.load.trust import Trust, services_trust
from antiphon_tools.load.upstream import Pace


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options of a load test.

    If `record` is set, a recording is made, and `service` is empty. If `target` is empty,
    `deployment` is started. If there are no `objectives`, the defaults for the service's outputs
    are used. `trust` is set if the gateway uses TLS, and `stage_trust` is set if the stages do.
    `api_key` is only sent to the gateway.
    """

    service: str
    load: Load
    content: Content
    objectives: tuple[Objective, ...]
    target: str
    deployment: Deployment
    endpoint: Literal["http", "grpc"]
    pace: Pace
    timeout_s: float
    record: Path | None
    replay: Path | None
    find_capacity: bool
    wanted_goodput: float
    max_trials: int
    resolution: float
    json: Path | None
    html: Path | None
    trust: Trust | None = None
    stage_trust: Trust | None = None
    api_key: str = field(default="", repr=False)

    @property
    def model_dir(self) -> Path | None:
        """The directory of the checkpoint, if it is known."""
        return Path(self.deployment.model) if self.deployment.model else None

    def settings(self) -> dict[str, Any]:
        """Return all settings that affect the result, for the report."""
        load = {name: value for name, value in asdict(self.load).items() if value is not None}
        content = msgspec.to_builtins(self.content)
        content["prompts"] = len(self.content.prompts)
        content["options"] = sorted(self.content.options)
        own = {
            "target": self.target,
            "model": self.deployment.model,
            "endpoint": self.endpoint if self.service == GATEWAY else "",
            "pace": "real time" if self.pace.real_time else "flat out",
            "replay": str(self.replay or ""),
            "timeout_s": self.timeout_s,
        }
        return {**{name: value for name, value in own.items() if value}, **load, **content}


def read_options(
    arguments: Sequence[str] | None = None, *, prog: str = "python -m antiphon_tools.load"
) -> LoadOptions:
    """Parse the command line.

    Raises `InvalidArgument` if it is invalid. Exits the process on `--help`.
    """
    parser = command_line(prog)
    given = parser.parse_args(arguments)
    deployment, services = _deployment(given), [GATEWAY, "a stage's role"]
    if not given.target:
        deployment, pipeline = resolve(deployment, application_root())
        services = [*pipeline.roles, GATEWAY]
        if given.service and given.service not in services:
            parser.error(f"unknown service {given.service}; use one of: {', '.join(services)}")
    if bool(given.service) == bool(given.record):
        raise InvalidArgument(
            f"specify the service to test: one of {', '.join(services)}; or use --record FILE"
        )
    if given.record and given.target:
        raise InvalidArgument(
            "--record can't be combined with --target, because it starts the processes that it "
            "records"
        )
    if given.service != GATEWAY and "://" in given.target:
        raise InvalidArgument(
            f"--target {given.target}: is the HTTP endpoint of a gateway; for the service "
            f"{given.service}, use the host:port on which it serves gRPC"
        )
    _check_certificate(given)
    if not (given.api_key.isascii() and (given.api_key.isprintable())):
        raise InvalidArgument("--api-key: must consist of printable ASCII characters")
    return LoadOptions(
        service=given.service or "",
        load=_load(given),
        content=_content(given),
        objectives=tuple(Objective.parse(text) for text in given.slo),
        target=given.target,
        deployment=deployment,
        endpoint="grpc" if given.target and "://" not in given.target else given.endpoint,
        pace=Pace(given.pace == "real", given.feed_rate),
        timeout_s=given.timeout,
        record=given.record,
        replay=given.replay,
        find_capacity=given.find_capacity,
        wanted_goodput=given.goodput,
        max_trials=given.max_trials,
        resolution=given.resolution,
        json=given.json,
        html=given.html,
        trust=_trust(given, deployment),
        stage_trust=_stage_trust(given, deployment),
        api_key=given.api_key,
    )


def _trust(given: argparse.Namespace, deployment: Deployment) -> Trust | None:
    """Return the trust settings for a gateway with TLS.

    They are taken from the command line or from the deployment that is started.
    """
    if given.tls is not None:
        return _told(given)
    return Trust() if deployment.gateway.tls is not None and not given.target else None


def _check_certificate(given: argparse.Namespace) -> None:
    if (given.certificate is None) != (given.key is None):
        raise InvalidArgument("--certificate and --key must be used together", field="key")
    if given.certificate is not None and given.tls is None:
        raise InvalidArgument("--certificate requires --tls", field="certificate")


def _stage_trust(given: argparse.Namespace, deployment: Deployment) -> Trust | None:
    """Return the trust settings for stages with TLS.

    For an existing target, they are taken from the command line. For stages that are started here,
    they are the credentials that their gateway would use.
    """
    if given.target:
        return None if given.service == GATEWAY or given.tls is None else _told(given)
    return None if deployment.mutual_tls is None else services_trust(deployment.mutual_tls)


def _told(given: argparse.Namespace) -> Trust:
    return Trust(Path(given.tls) if given.tls else None, given.certificate, given.key)


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
        outputs=(TEXT,) if given.text_only else (),
        delivery=Delivery(given.delivery) if given.delivery else None,
        chunk_policy=given.chunk_frames,
        options=read_given(given.option),
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


def _deployment(given: argparse.Namespace) -> Deployment:
    deployment = load_deployment(given.config) if given.config else Deployment()
    if given.model:
        deployment = msgspec.structs.replace(deployment, model=given.model)
    return with_directories(with_overrides(deployment, given.stage), hub_settings(given))
