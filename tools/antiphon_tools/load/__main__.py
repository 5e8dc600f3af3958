"""`python -m antiphon_tools.load SERVICE`: load one service and report what its users observe."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from antiphon.errors import AntiphonError
from antiphon_tools.launcher.console import Console
from antiphon_tools.launcher.plan import GATEWAY
from antiphon_tools.load.capture import record
from antiphon_tools.load.options import LoadOptions, read_options
from antiphon_tools.load.page import page
from antiphon_tools.load.recording import write_recording
from antiphon_tools.load.result import Result
from antiphon_tools.load.tables import lines, tables
from antiphon_tools.load.target import Target, started, target_at
from antiphon_tools.load.trials import load_service

RECORDED_SESSIONS = 4


def main(
    arguments: Sequence[str] | None = None, *, prog: str = "python -m antiphon_tools.load"
) -> int:
    """Run the command line and return its exit status."""
    console = Console(sys.stdout, output=False)
    try:
        options = read_options(arguments, prog=prog)
        if options.record is not None:
            asyncio.run(_record(options, options.record, console))
        else:
            result = asyncio.run(_load(options, console))
            _tell(result, options, console)
            return _status(result, console)
    except (AntiphonError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        console.say("\ninterrupted; all processes were stopped")
        return 130
    return 0


async def _load(options: LoadOptions, console: Console) -> Result:
    """Start the services that are needed, run the load test, and stop them."""
    async with _target(options, console) as target:
        console.say(f"Loading {options.service}: {_in_words(options)}")
        return await load_service(options, target, sys.stdout)


async def _record(options: LoadOptions, path: Path, console: Console) -> None:
    """Send a few requests to a complete deployment and write the chunks that its stages sent."""
    async with _target(options, console) as target:
        count = options.load.sessions or RECORDED_SESSIONS
        timeout_s = options.timeout_s
        chunks = await record(
            target.stages, options.content, count, timeout_s=timeout_s, trust=options.stage_trust
        )
    written = write_recording(path, chunks)
    console.say(f"{path}: {written} chunks of {count} sessions")


@contextlib.asynccontextmanager
async def _target(options: LoadOptions, console: Console) -> AsyncIterator[Target]:
    """Return the service to load. If it is started here, it is stopped afterwards."""
    if options.target:
        yield target_at(options.service, options.target)
        return
    service = options.service or GATEWAY
    async with started(service, options.deployment, console) as target:
        yield target


def _tell(result: Result, options: LoadOptions, console: Console) -> None:
    """Print the tables and write the files."""
    console.say()
    for table in tables(result):
        for line in lines(table):
            console.say(line)
        console.say()
    if result.interrupted:
        console.say("The run was interrupted. The results only cover the requests until then.")
    for path, content in (
        (options.json, msgspec.json.format(msgspec.json.encode(result), indent=2)),
        (options.html, page(result).encode()),
    ):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            console.say(f"saved {path}")


def _status(result: Result, console: Console) -> int:
    """Return 1 if a request failed. Violated objectives do not affect the exit status."""
    requests = result.requests
    if requests.due == requests.succeeded:
        return 0
    console.say(
        f"{requests.due - requests.succeeded} of {requests.due} requests failed, so the exit "
        "status is 1"
    )
    return 1


def _in_words(options: LoadOptions) -> str:
    load = options.load
    how = f"{load.sessions} sessions" if load.sessions else f"{load.rate:g} requests/s"
    return f"{how}, {load.warm_up_s:g} s to warm up, then {load.seconds:g} s"


if __name__ == "__main__":
    sys.exit(main())
