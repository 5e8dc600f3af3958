"""Runs the gateway or creates an API key: `python -m antiphon_gateway [keys new NAME] --help`."""

from __future__ import annotations

from antiphon.early_stop import end_on_early_stop

if __name__ == "__main__":
    end_on_early_stop()

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence

import uvloop
from msgspec import structs

from antiphon.errors import AntiphonError, Unavailable
from antiphon.log_format import configure_logging
from antiphon.transport.heap import leave_out_startup
from antiphon_gateway.config import GatewayOptions, read_options
from antiphon_gateway.keys.command import keys_command
from antiphon_gateway.server import Gateway
from antiphon_gateway.serving.descriptors import within_limit

log = logging.getLogger("gateway")


def main(
    arguments: Sequence[str] | None = None, *, prog: str = "python -m antiphon_gateway"
) -> int:
    """Run the gateway until it receives SIGTERM or SIGINT, or create a key. Returns the exit
    status.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if given[:1] == ["keys"]:
            return keys_command(given[1:], prog=f"{prog} keys")
        options = read_options(given, prog=prog)
        configure_logging(
            options.log_level.upper(), "%(asctime)s %(levelname)s %(name)s %(message)s"
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(options))
    except AntiphonError as error:
        print(f"gateway: {error.message}", file=sys.stderr)
        return 2
    return 0


async def _serve(options: GatewayOptions) -> None:
    """Serve until the first signal and then drain. A second signal stops the gateway right away."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    config = within_limit(options.deployment.gateway)
    gateway = Gateway(structs.replace(options.deployment, gateway=config))

    def told() -> None:
        if stop.is_set():
            log.info("received another signal to stop: ending all requests")
            gateway.force_stop()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    async with gateway:
        gateway.calls.media.decoder.processes.start()
        leave_out_startup()
        log.info("listening: http %s, grpc %s", gateway.http_address, gateway.grpc_address)
        addresses = {"http": gateway.http_address, "grpc": gateway.grpc_address}
        if options.deployment.gateway.metrics_listen:
            addresses["metrics"] = gateway.metrics_address
        if gateway.scaler is not None:
            log.info("the scaler is listening at %s", gateway.scaler.address)
            addresses["scaler"] = gateway.scaler.address
        _announce(options, {"event": "listening", **addresses})
        ready = asyncio.create_task(gateway.wait_ready())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait((ready, stopped), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            seconds = round(time.monotonic() - began, 3)
            log.info("ready after %s s", seconds)
            _announce(options, {"event": "ready", "seconds": seconds})
        ready.cancel()
        closed = asyncio.create_task(gateway.wait_closed())
        await asyncio.wait((stopped, closed), return_when=asyncio.FIRST_COMPLETED)
        closed.cancel()
        if not stop.is_set():
            raise Unavailable(
                "the gRPC server has closed unexpectedly; the gateway is shutting down"
            )
        log.info(
            "shutting down: waiting up to %g s for requests to finish",
            options.deployment.gateway.drain_s,
        )


def _announce(options: GatewayOptions, event: dict[str, object]) -> None:
    """Report the addresses to the parent process."""
    if options.announce_fd is not None:
        os.write(options.announce_fd, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
