"""A whole deployment as the first process of a PID namespace, as in a container."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import antiphon
from antiphon import SamplingRequest
from antiphon_tools.launcher.plan import CHECKOUT, import_path
from tests.pid_namespace import NAMESPACE, needs_namespace

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(660),
    needs_namespace,
]

LONG_S = 600.0
COMMAND = "import sys; from antiphon_tools.command import main; sys.exit(main())"
SPEECH = {"talker": SamplingRequest(temperature=0.0, max_tokens=30)}
# The shell ends at once, so that its child belongs to the first process of the namespace. The child
# ends with its input.
ORPHAN = "exec 3<&0; sh -c 'read line' <&3 >/dev/null & echo $!"


class Container:
    """The command, whose processes only see each other."""

    def __init__(self, outside: asyncio.subprocess.Process) -> None:
        self.outside = outside
        self.said = ""

    @property
    def first(self) -> int:
        """The first process, by its number outside."""
        children = Path(f"/proc/{self.outside.pid}/task/{self.outside.pid}/children")
        return int(children.read_text())

    async def until(self, mark: str) -> str:
        """What is printed up to the line that has `mark`."""
        assert self.outside.stdout is not None
        from_here = len(self.said)
        async for line in self.outside.stdout:
            self.said += line.decode()
            if mark in line.decode():
                return self.said[from_here:]
        raise AssertionError(f"it ended before {mark!r}:\n{self.said}")

    async def inside(self, script: str, stdin: int = asyncio.subprocess.DEVNULL) -> str:
        """The output of a shell that runs in the namespace."""
        entered = await asyncio.create_subprocess_exec(
            *("nsenter", "--target", str(self.first), "--pid", "--mount", "sh", "-c", script),
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        said, _ = await entered.communicate()
        return said.decode()


@asynccontextmanager
async def container(model: Path, temporary: Path) -> AsyncIterator[Container]:
    async with asyncio.timeout(LONG_S):
        outside = await asyncio.create_subprocess_exec(
            *(*NAMESPACE, sys.executable, "-c", COMMAND, "serve", str(model)),
            *("--port", "0", "--grpc-port", "0"),
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": import_path(CHECKOUT), "TMPDIR": str(temporary)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        deployment = Container(outside)
        try:
            yield deployment
        except TimeoutError:
            raise AssertionError(f"it took too long:\n{deployment.said}") from None
        finally:
            if outside.returncode is None:
                outside.kill()
            await outside.wait()


async def speak(client: antiphon.AsyncClient) -> tuple[str, int]:
    reply = await client.generate("Hello", max_tokens=20, sampling=SPEECH).collect()
    return reply.text, len(reply.pcm16)


async def test_deployment_speaks_reaps_restarts_and_stops_when_it_is_the_first_process(
    tiny: Path, tmp_path: Path
) -> None:
    async with container(tiny, tmp_path) as deployment:
        said = await deployment.until("    gateway ")
        (talker,) = re.findall(r"^talker +\| started, process (\d+)", said, re.MULTILINE)
        (place,) = re.findall(r"^talker +\| listens on ([^ ,]+)", said, re.MULTILINE)
        (address,) = re.findall(r"^  gRPC  (\S+)", said, re.MULTILINE)
        async with antiphon.AsyncClient(address) as client:
            before = await speak(client)
            assert before[1]

            read_end, write_end = os.pipe()
            orphan = (await deployment.inside(ORPHAN, read_end)).strip()
            os.close(read_end)
            status = f"cat /proc/{orphan}/status"
            assert "\nPPid:\t1\n" in await deployment.inside(status)
            os.close(write_end)
            while True:
                if not await deployment.inside(status):
                    break
                await asyncio.sleep(0.01)

            await deployment.inside(f"kill -KILL {talker}")
            await deployment.until("talker   | was killed by SIGKILL")
            await deployment.until(f"stage talker at {place} is ready")
            assert await speak(client) == before
        assert "(zombie)" not in await deployment.inside("cat /proc/[0-9]*/status")

        os.kill(deployment.first, signal.SIGTERM)
        said = await deployment.until("all processes have been stopped")
        assert said.count("exited with status 0\n") == 4
        assert await deployment.outside.wait() == 0
    assert not os.listdir(tmp_path)
