"""`python -m antiphon_tools.launcher up`: run a complete deployment in the foreground.

`stages` only runs some of the stages. It is intended for containers whose stages share an
accelerator.
"""

from __future__ import annotations

from antiphon.early_stop import KILLED, end_on_early_stop

if __name__ == "__main__":
    end_on_early_stop()

import argparse
import asyncio
import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from antiphon.deployment.address import host_and_port, joined
from antiphon.deployment.environment import expanded
from antiphon.deployment.schema import Deployment, GatewayConfig, load_deployment
from antiphon.errors import AntiphonError, InvalidArgument
from antiphon.runtime.server.health_endpoint import health_endpoint
from antiphon_tools.hub.deployment import with_directories
from antiphon_tools.hub.settings import HubSettings, add_hub_options, hub_settings
from antiphon_tools.launcher.console import Console
from antiphon_tools.launcher.first_process import (
    STOP_SIGNALS,
    fork_if_first,
    open_standard_streams,
)
from antiphon_tools.launcher.forking import has_process_handles
from antiphon_tools.launcher.health import HealthOfAll
from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.launcher.plan import with_gateway, with_overrides, with_replicas

USAGE = 2
"""The exit status if an option is invalid, as with argparse."""
SAME_REQUEST_S = 0.25
"""Signals that arrive within this number of seconds count as one request to stop."""
# The container's orchestrator decides how long loading the weights may take.
_STAGES_STARTUP_S = 86_400.0
# The default deployment of `up`, whose endpoints have the addresses used in the documentation.
_WITHOUT_FILE = Deployment(gateway=GatewayConfig(grpc_listen="localhost:50050"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    return _run(command_line().parse_args(arguments))


def serve(arguments: Sequence[str] | None = None, *, prog: str = "antiphon serve") -> int:
    """Run `up` with the checkpoint as the first argument. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} [MODEL] [OPTION ...]",
        description=("Serves a model, with a process for each stage and one for the gateway."),
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="directory, or ORG/NAME on the hub (the demo model)",
    )
    _add_up(parser)
    parser.set_defaults(command="up")
    return _run(parser.parse_args(arguments))


def _run(options: argparse.Namespace) -> int:
    fork_if_first(STOP_SIGNALS)
    open_standard_streams()
    if sys.version_info < (3, 12) and has_process_handles():
        # Newer versions of Python do this by default. Otherwise, each service needs a thread, which
        # can't be started if the system has no free processes.
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    console = Console(sys.stdout, background=True)
    try:
        try:
            return _run_with(options, console)
        finally:
            console.close()
    except AntiphonError as error:
        print(f"error: {error}", file=sys.stderr)
        # The message starts with the option or the setting that is invalid.
        return USAGE if error.message.startswith("--") else 1
    except KeyboardInterrupt:
        print("\ninterrupted; the next start will continue the download", file=sys.stderr)
        return KILLED + signal.SIGINT


def _run_with(options: argparse.Namespace, console: Console) -> int:
    if options.command == "stages":
        deployment = with_directories(load_deployment(options.config), HubSettings())
        launcher = Launcher(
            deployment,
            only=options.roles,
            on_exit="restart",
            report=console,
            startup_timeout_s=_STAGES_STARTUP_S,
        )
        return asyncio.run(stages(launcher, console, options.health_listen))
    deployment = with_directories(deployment_of_options(options), hub_settings(options))
    launcher = Launcher(
        deployment,
        gateways=options.gateways,
        metrics=True,
        on_exit=options.on_exit,
        report=console,
        fork=True,
    )
    return asyncio.run(up(launcher, console))


async def up(launcher: Launcher, console: Console) -> int:
    """Run until a signal is received (exit status 0) or a service ends the deployment (1).

    A second signal kills all processes. The exit status is then that of a command that this signal
    has killed, such as 130 for SIGINT.
    """
    stopping = _StopOnSignal(launcher, console)
    try:
        async with launcher as running:
            console.say(f"\nready in {running.startup_s:.1f} s; press Ctrl-C to stop all processes")
            console.say(f"  model {running.model}")
            console.say(f"  HTTP  {running.http_url}")
            console.say(f"  gRPC  {running.grpc_address}")
            console.say("  metrics")
            for name, process in running.processes.items():
                if process.metrics_url:
                    console.say(f"    {name:<9} {process.metrics_url}")
            console.say()
            ended = await running.wait()
            console.say(f"{ended.name} has exited; stopping all processes")
            return 1
    except asyncio.CancelledError:
        if not stopping.asked:
            raise
        console.say(f"all processes have been {stopping.how}")
        return stopping.status


async def stages(launcher: Launcher, console: Console, health_listen: str) -> int:
    """Run until a signal is received and respond to health probes. The exit status is that of
    `up`.
    """
    stopping = _StopOnSignal(launcher, console)
    try:
        async with (
            health_endpoint(health_listen, HealthOfAll(lambda: launcher.health_endpoints)),
            launcher as running,
        ):
            console.say(f"ready in {running.startup_s:.1f} s: {', '.join(running.processes)}")
            await running.wait()
            return 1
    except asyncio.CancelledError:
        if not stopping.asked:
            raise
        return stopping.status


class _StopOnSignal:
    """Stops everything in order after the first signal and kills all processes after the second.

    `timeout` and some supervisors send a signal to the process and to its group, which is also
    received by the process. A signal within `SAME_REQUEST_S` of the first one is therefore ignored.
    `status` is the exit status after the signals that have been received.
    """

    def __init__(self, launcher: Launcher, console: Console) -> None:
        self.asked = False
        self._asked_at = -math.inf
        self.status = 0
        self._launcher = launcher
        self._console = console
        self._task = asyncio.current_task()
        for number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._stop, number)

    @property
    def how(self) -> str:
        """What has happened to the processes."""
        return "killed" if self.status else "stopped"

    def _stop(self, number: signal.Signals) -> None:
        now = asyncio.get_running_loop().time()
        if self.asked or self._task is None:
            if now < self._asked_at + SAME_REQUEST_S:
                return
            self._console.say("killing everything")
            self.status = KILLED + number
            self._launcher.kill()
            return
        self.asked = True
        self._asked_at = now
        self._console.say("\nstopping; to kill all processes, press Ctrl-C again")
        self._task.cancel()


def command_line() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = argparse.ArgumentParser(prog="python -m antiphon_tools.launcher")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    some = commands.add_parser("stages", help="start only some stages, without a gateway")
    some.add_argument("roles", nargs="+", metavar="ROLE", help="roles of the stages to start")
    some.add_argument(
        "--config", type=Path, metavar="FILE", required=True, help="deployment file (YAML)"
    )
    some.add_argument(
        "--health-listen",
        default="",
        metavar="ADDRESS",
        help="address of the shared health checks, host:port",
    )
    up = commands.add_parser(
        "up", help="start every stage and the gateway, each as a separate process"
    )
    up.add_argument(
        "--model",
        metavar="MODEL",
        help="checkpoint directory, or ORG/NAME on the Hugging Face hub (the demo model)",
    )
    _add_up(up)
    return parser


def _add_up(up: argparse.ArgumentParser) -> None:
    """Add the options of `up`, except the model."""
    add = up.add_argument
    add("--config", type=Path, metavar="FILE", help="deployment file (YAML)")
    add(
        "--host",
        metavar="ADDRESS",
        help="listen address of the gateway (localhost; :: is all)",
    )
    add("--port", type=int, help="HTTP port (8000); 0 selects a free port")
    add(
        "--grpc-port",
        type=int,
        metavar="PORT",
        help="gRPC port (50050; with --config: a free port)",
    )
    add(
        "--gateways",
        type=int,
        default=1,
        metavar="N",
        help="gateway processes that share the ports (1)",
    )
    add(
        "--on-exit",
        choices=("restart", "stop"),
        default="restart",
        metavar="ACTION",
        help="if a process exits: restart (default) or stop all",
    )
    # The values of this option end at the next option, so a model must precede them.
    add(
        "--stage",
        action="extend",
        nargs="+",
        default=[],
        metavar="SETTING",
        help="setting of a stage, such as ROLE.device=cuda:1",
    )
    add(
        "--replicas",
        action="extend",
        nargs="+",
        default=[],
        metavar="N",
        help="number of replicas of a stage, such as ROLE=2",
    )
    add_hub_options(up)


def deployment_of_options(options: argparse.Namespace) -> Deployment:
    """Return the deployment file with the overrides of the command line."""
    deployment = load_deployment(options.config) if options.config else _WITHOUT_FILE
    if options.model is not None:
        if not options.model:
            raise InvalidArgument(
                "model: must not be empty; omit it to serve the demonstration model", field="model"
            )
        deployment = msgspec.structs.replace(deployment, model=options.model)
    deployment = with_overrides(deployment, options.stage)
    deployment = with_replicas(deployment, options.replicas)
    endpoints = {
        field: _listen(field, getattr(deployment.gateway, field), options.host, port)
        for field, port in (("http_listen", options.port), ("grpc_listen", options.grpc_port))
    }
    return with_gateway(deployment, endpoints)


def _listen(field: str, configured: str, host: str | None, port: int | None) -> str:
    """Return the configured address with a different host or port."""
    setting = f"gateway.{field}"
    address = expanded(configured, os.environ, field=setting)
    old_host, old_port = host_and_port(address, field=setting)
    new_host = old_host if host is None else host.removeprefix("[").removesuffix("]")
    return joined(new_host, old_port if port is None else port)


if __name__ == "__main__":
    sys.exit(main())
