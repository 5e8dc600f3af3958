"""The entry point of a stage process. It parses the command line and runs the stage.

The port is bound and announced before the model and torch are loaded, which allows a launcher to
start the gateway in the meantime. The health service reports SERVING once the stage can run
sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import msgspec
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from antiphon.deployment.address import check_listen, host_and_port
from antiphon.deployment.environment import expanded
from antiphon.deployment.schema import (
    Deployment,
    StageConfig,
    check_roles,
    load_deployment,
)
from antiphon.errors import AntiphonError, InvalidArgument
from antiphon.log_format import configure_logging
from antiphon.pipelines.graph import Pipeline
from antiphon.pipelines.registry import pipeline_for
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.process import run
from antiphon.runtime.server.callers import callers_of
from antiphon.runtime.server.description import StageIdentity
from antiphon.runtime.server.engine_faults import PAUSE_S, EngineFaults
from antiphon.runtime.server.health import SERVICE_NAME, Health
from antiphon.runtime.server.health_endpoint import health_endpoint
from antiphon.runtime.server.link_port import LinkPort
from antiphon.runtime.server.metrics import StageMetrics
from antiphon.runtime.server.metrics_endpoint import metrics_endpoint
from antiphon.runtime.server.servicer import StageServicer
from antiphon.runtime.server.stage import Stage
from antiphon.runtime.session.plan import StageLimits, StagePlan
from antiphon.tracing.tracing import open_tracing
from antiphon.transport.channel import CHANNEL_OPTIONS, SERVER_OPTIONS
from antiphon.transport.heap import leave_out_startup
from antiphon.transport.listening import listen_at, wait_closed
from antiphon.transport.mutual_tls import ServiceTls, open_channel, service_tls
from antiphon.transport.payload.registry import candidates, check_possible
from antiphon.transport.settings import LinkIdentity, LinkSettings
from antiphon.values.segment import Delivery
from antiphon.wire.frames import add_stage_service

Load = Callable[[Pipeline, str, Path, StageConfig], LoadedStage]
"""A function that loads the model for a role. It runs on a separate thread and can take several
minutes.
"""

# The exit status that is used when the engine has given up, and the number of seconds that the
# process has to exit.
FAILED_STATUS = 1
FAILED_EXIT_S = 10.0
# The step timeouts in seconds that are used if the deployment doesn't set one.
STEP_TIMEOUT_CPU_S = 30.0
STEP_TIMEOUT_ACCELERATOR_S = 5.0
STOP_GRACE_S = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageOptions:
    """The validated command line of a stage process."""

    role: str
    deployment: Deployment
    config: StageConfig
    model_dir: Path
    pipeline: Pipeline
    announce_fd: int | None
    name: str


def main(load: Load, argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """Run a stage until it receives a signal. Returns the exit status of the process."""
    arguments = _parser(prog).parse_args(argv)
    role = arguments.role
    configure_logging(
        arguments.log_level.upper(), "%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        options = _options(arguments)
        return run(_serve(options, load))
    except AntiphonError as error:
        print(f"{role}: {error.message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser(prog: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        usage="%(prog)s ROLE [OPTION ...]",
        description="Serves one stage of a model over gRPC.",
    )
    parser.add_argument("role", metavar="ROLE", help="role of the stage in the pipeline")
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="deployment file (YAML)")
    add(
        "--model",
        type=Path,
        metavar="DIR",
        help=("checkpoint directory (default: the deployment file's)"),
    )
    add("--listen", metavar="ADDRESS", help="gRPC address, host:port; port 0 selects a free port")
    add("--metrics-listen", metavar="ADDRESS", help="address of the metrics over HTTP, host:port")
    add(
        "--health-listen",
        metavar="ADDRESS",
        help=("address of the health checks over gRPC, host:port"),
    )
    add("--name", help="name of this process in metrics (default: the host name)")
    add(
        "--announce-fd",
        type=int,
        metavar="FD",
        help=("write the events `listening` and `ready` to this file"),
    )
    add("--log-level", default="info", choices=("debug", "info", "warning"), help="(info)")
    return parser


def _options(arguments: argparse.Namespace) -> StageOptions:
    """Validate the command line and the deployment. Every configuration error is reported here,
    before anything is started.
    """
    role = arguments.role
    deployment = load_deployment(arguments.config) if arguments.config else Deployment()
    model = arguments.model or (Path(deployment.model) if deployment.model else None)
    if model is None:
        raise InvalidArgument(
            "no model was specified: use --model DIR, or set `model` in the deployment file"
        )
    pipeline = pipeline_for(model, deployment.pipeline)
    pipeline.check_role(role, model.resolve().name)
    check_roles(deployment, pipeline.name, pipeline.roles)
    unknown = sorted(set(deployment.delivery) - {edge.name for edge in pipeline.edges})
    if unknown:
        raise InvalidArgument(f"delivery: pipeline {pipeline.name} has no edge {unknown}")
    config = deployment.stage(role)
    names = ("listen", "metrics_listen", "health_listen")
    given = {name: value for name in names if (value := getattr(arguments, name))}
    config = msgspec.structs.replace(config, **given)
    addresses = {
        name: expanded(value, os.environ, field=f"stages.{role}.{name}")
        for name in (*names, "advertise")
        if (value := getattr(config, name))
    }
    config = msgspec.structs.replace(config, **addresses)
    if config.advertise:
        host_and_port(config.advertise, field=f"stages.{role}.advertise")
    for field in ("metrics_listen", "health_listen"):
        check_listen(getattr(config, field), field=field)
    check_possible(_link_settings(deployment, config))
    name = arguments.name or socket.gethostname()
    return StageOptions(role, deployment, config, model, pipeline, arguments.announce_fd, name)


async def _serve(options: StageOptions, load: Load) -> int:
    """Run the stage. It binds the port, announces it, loads the model, serves until a signal
    arrives, and then drains.
    """
    started = time.perf_counter()
    healthiness = Health()
    await healthiness.tell(serving=False)
    metrics = StageMetrics(options.role, options.config.device, lambda: healthiness.serving)
    async with (
        metrics_endpoint(options.config.metrics_listen, metrics) as metrics_address,
        health_endpoint(options.config.health_listen, healthiness.probes) as health_address,
    ):
        tracing = open_tracing(
            options.config.trace_endpoint,
            f"antiphon-{options.role}",
            field=f"stages.{options.role}.trace_endpoint",
        )
        tls = service_tls(options.deployment.mutual_tls, options.role)
        servicer = StageServicer(tracing, callers_of(tls, options.pipeline, options.role))
        server, address = await _start_server(options.config.listen, servicer, healthiness, tls)
        listening = {
            "event": "listening",
            "address": address,
            "metrics": metrics_address,
            "health": health_address,
        }
        _announce(options.announce_fd, listening)
        if metrics_address:
            log.info(
                "%s: metrics are available at http://%s/metrics", options.role, metrics_address
            )
        signals = _Signals()
        stage: Stage | None = None
        status = 0
        try:
            loaded = await _load_or_stop(options, load, signals.stop)
            if loaded is None:
                return 0
            stage = _start_stage(options, loaded, address, servicer, metrics, healthiness, tls)
            leave_out_startup()
            await healthiness.tell(serving=True)
            healthiness.follow(loaded.engine)
            seconds = time.perf_counter() - started
            _announce(options.announce_fd, {"event": "ready", "seconds": round(seconds, 3)})
            log.info(
                "%s is serving %s at %s after %.1f s",
                options.role,
                options.model_dir,
                address,
                seconds,
            )
            await _either(signals.stop.wait(), stage.failed.wait(), wait_closed(server))
            broken = not (signals.stop.is_set() or stage.failed.is_set())
            await healthiness.close()
            if not (broken or stage.failed.is_set()):
                await _drain(stage, options.config.drain_s, signals.at_once)
            if broken or stage.failed.is_set():
                what = "server has closed unexpectedly" if broken else "engine can't continue"
                log.critical("%s exits in order to be restarted: its %s", options.role, what)
                _end_within(FAILED_EXIT_S)
                status = FAILED_STATUS
        finally:
            if stage is not None:
                await stage.close()
            await server.stop(STOP_GRACE_S)
            await asyncio.to_thread(tracing.close)
    return status


async def _drain(stage: Stage, drain_s: float, at_once: asyncio.Event) -> None:
    """Wait for all sessions to end, for at most `drain_s` seconds."""
    running = stage.table.session_count
    if running:
        log.info("waiting for %d sessions to finish, up to %g s", running, drain_s)
    await _either(stage.drain(drain_s), at_once.wait())
    if left := stage.table.session_count:
        log.warning("%d sessions had not finished when the stage stopped", left)


async def _either(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of the coroutines returns and cancel the rest."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def _end_within(seconds: float) -> None:
    """Make sure that the process exits within the given time, even if a thread or a destructor is
    stuck on a lost device.
    """
    timer = threading.Timer(seconds, os._exit, (FAILED_STATUS,))
    timer.daemon = True
    timer.start()


async def _start_server(
    listen: str, servicer: StageServicer, healthiness: Health, tls: ServiceTls | None
) -> tuple[grpc.aio.Server, str]:
    """Start the gRPC server and return it together with its address."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_stage_service(servicer, server)
    health_pb2_grpc.add_HealthServicer_to_server(healthiness.servicer, server)
    names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    credentials = None if tls is None else tls.server_credentials
    address = listen_at(server, listen, field="listen", credentials=credentials)
    await server.start()
    return server, address


async def _load_or_stop(
    options: StageOptions, load: Load, stop: asyncio.Event
) -> LoadedStage | None:
    """Return the loaded model, or None if `stop` was set first."""
    loading = asyncio.create_task(
        asyncio.to_thread(load, options.pipeline, options.role, options.model_dir, options.config)
    )
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    return await loading if loading.done() else None


def _start_stage(
    options: StageOptions,
    loaded: LoadedStage,
    address: str,
    servicer: StageServicer,
    metrics: StageMetrics,
    healthiness: Health,
    tls: ServiceTls | None,
) -> Stage:
    """Create the stage from the loaded model and start serving it."""
    config = options.config
    name = options.deployment.model_name
    facts = replace(loaded.facts, model=name) if name else loaded.facts
    pipeline = options.pipeline.with_options(options.role, facts.options)
    links = _link_settings(options.deployment, config)
    identity = StageIdentity(
        pipeline,
        options.role,
        facts,
        config.slots,
        transports=candidates(links),
        resume_window_s=links.resume_window_s,
    )
    limits = StageLimits.of(config, options.deployment.gateway)
    delivery = {edge: Delivery(value) for edge, value in options.deployment.delivery.items()}
    plan = StagePlan.of(
        pipeline,
        options.role,
        facts.default_sampling,
        limits,
        delivery,
        facts.sample_rate_hz,
        facts.goes_on_from,
    )
    reached_at = config.advertise or address
    link_identity = LinkIdentity(
        identity.host_id, identity.boot_id, options.role, reached_at, options.name
    )
    consumers = {edge.name: edge.consumers[0] for edge in pipeline.outputs(options.role)}
    stage = Stage(
        loaded,
        plan,
        link_identity,
        links=links,
        outbox_bytes=config.sessions.outbox_bytes,
        engine_nice=config.engine_nice or 0,
        mailbox_bytes=config.sessions.mailbox_bytes,
        step_timeout_s=_step_timeout_s(config),
        faults=EngineFaults(
            lambda fault, passes: healthiness.note("engine", fault, passes=passes),
            pause_s=PAUSE_S,
            hung_s=config.watchdog.hung_timeout_s,
        ),
        connect=lambda at, edge: open_channel(tls, at, consumers[edge], CHANNEL_OPTIONS),
    )
    stage.start()
    link_port = LinkPort(stage, link_identity, links)
    servicer.serve(stage, identity, link_port)
    metrics.serve(stage, identity)
    return stage


def _link_settings(deployment: Deployment, config: StageConfig) -> LinkSettings:
    return LinkSettings.of(config, mutual_tls=deployment.mutual_tls is not None)


def _step_timeout_s(config: StageConfig) -> float:
    """Return the configured step timeout, or the default for the device."""
    if config.watchdog.step_timeout_s is not None:
        return config.watchdog.step_timeout_s
    return STEP_TIMEOUT_CPU_S if config.device == "cpu" else STEP_TIMEOUT_ACCELERATOR_S


class _Signals:
    """Handles SIGTERM and SIGINT. The first signal sets `stop`, and the second sets `at_once`."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.at_once = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._came)

    def _came(self) -> None:
        if self.stop.is_set():
            self.at_once.set()
        self.stop.set()


def _announce(fd: int | None, line: Mapping[str, object]) -> None:
    """Write a line to the launcher, if this process was started by one."""
    if fd is not None:
        os.write(fd, json.dumps(line).encode() + b"\n")
