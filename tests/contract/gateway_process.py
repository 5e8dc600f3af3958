"""`python -m antiphon_gateway` as a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def gateway_process(
    config: Path, *arguments: str, files: int | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.StreamReader]]:
    """The process, and what it announces. `files`: how many it may open."""
    limited = ("sh", "-c", 'ulimit -n "$0" && exec "$@"', str(files)) if files else ()
    reading, writing = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *limited, sys.executable, "-m", "antiphon_gateway", "--config", str(config),
        "--announce-fd", str(writing), *arguments,
        pass_fds=(writing,), stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    os.close(writing)
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb")
    )
    try:
        yield process, reader
    finally:
        transport.close()
        if process.returncode is None:
            process.kill()
        await process.communicate()
