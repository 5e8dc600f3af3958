"""Prints the results of one checkout as JSON: `python -m benchmarks.walks --help`.

The script is run with the import roots of another checkout, so it only uses features that all
checkouts have.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import itertools
import json
import os
import signal
import sys
import wave
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx

import antiphon_gateway
from antiphon.deployment.schema import Deployment, StageConfig
from antiphon_gateway.server import Gateway
from antiphon_gateway.sessions.events import AudioProduced
from antiphon_testkit.gateway_settings import gateway_config
from antiphon_tools.launcher.launcher import Launcher, Running
from antiphon_tools.launcher.plan import CHECKOUT, EMBEDDED_MODEL, replica_names, with_addresses

GATEWAY = str(Path(antiphon_gateway.__file__).parent)
READ, OPENED, NEXT = "read_body", "StageStream.__init__", "FailoverSegment.__anext__"
LOST = ("StageStream._lost", "StageStream._stage_lost")
ROLES = ("thinker", "talker", "code2wav")
REPLICAS = {"thinker": 1, "talker": 1, "code2wav": 2}
KILLED = "code2wav"
REQUESTS = 5


class Recorder:
    """Records the gateway's calls on this thread, in order, together with marks.

    Calls are counted between two marks. A coroutine that is resumed after a wait counts as called.
    """

    def __init__(self) -> None:
        self.calls: list[CodeType] = []
        self.marks: list[tuple[int, str]] = []

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record calls while the context is active."""
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, result: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(GATEWAY):
            return
        if event == "call":
            if code.co_qualname in (OPENED, *LOST):
                self.marks.append((len(self.calls), code.co_qualname))
            self.calls.append(code)
        elif event == "return":
            if code.co_qualname.endswith(READ):
                self.marks.append((len(self.calls), READ))
            elif code.co_qualname == NEXT and isinstance(result, AudioProduced):
                self.marks.append((len(self.calls), NEXT))

    def found(self, *names: str) -> list[int]:
        """Return the positions of the marks with these names."""
        return [at for at, name in self.marks if name in names]

    def walk(self, begin: int, end: int) -> dict[str, Any]:
        """Count the calls between two marks."""
        calls = self.calls[begin:end]
        files = [each.co_filename for each in calls]
        by_file: dict[str, Counter[str]] = {}
        for each in calls:
            name = str(Path(each.co_filename).relative_to(GATEWAY))
            by_file.setdefault(name, Counter())[each.co_qualname] += 1
        return {
            "functions": len(set(calls)),
            "files": len(set(files)),
            "moves": sum(one != other for one, other in itertools.pairwise(files)),
            "calls": len(calls),
            "by_file": by_file,
        }


def chat(gateway: Gateway, *, recording: bool, stream: bool = False) -> dict[str, Any]:
    """Return a chat request for text and speech."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": "How does it work?"}]
    if recording:
        file = io.BytesIO()
        with wave.open(file, "wb") as writing:
            writing.setparams((1, 2, 16_000, 0, "NONE", ""))
            writing.writeframes(bytes(16_000))
        audio = {"data": base64.b64encode(file.getvalue()).decode(), "format": "wav"}
        parts.append({"type": "input_audio", "input_audio": audio})
    return {
        "model": gateway.fleet.model_name(),
        "messages": [{"role": "user", "content": parts}],
        "modalities": ["text", "audio"],
        "audio": {"voice": gateway.fleet.voices()[0], "format": "pcm16" if stream else "wav"},
        "seed": 7,
        "stream": stream,
    }


def has_audio(line: str) -> bool:
    """Return whether a line of server-sent events contains samples."""
    if not line.startswith("data: {"):
        return False
    choices = json.loads(line.removeprefix("data: "))["choices"]
    return any((each["delta"].get("audio") or {}).get("data") for each in choices)


async def ask(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    """Request a complete answer."""
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text


async def walk_to_stages(
    http: httpx.AsyncClient, gateway: Gateway, *, recording: bool
) -> dict[str, Any]:
    """Count the calls from a chat's complete body to the message that opens the last stage. Of
    several requests, the one with the fewest calls is counted, because health checks and load
    reports are handled on the same thread.
    """
    body = chat(gateway, recording=recording)
    await ask(http, body)
    walks = []
    for _ in range(REQUESTS):
        recorder = Recorder()
        with recorder.recording():
            await ask(http, body)
        opened = recorder.found(OPENED)
        assert len(opened) == len(ROLES), "one session on all stages"
        begun = [at for at in recorder.found(READ) if at <= opened[0]]
        walks.append(recorder.walk(begun[-1], opened[-1] + 1))
    return min(walks, key=lambda walk: walk["calls"])


async def walk_of_failover(
    http: httpx.AsyncClient, gateway: Gateway, running: Running
) -> dict[str, Any]:
    """Count the calls from the loss of a killed vocoder's stream to the first continued sample."""
    recorder, killed = Recorder(), False
    with recorder.recording():
        body = chat(gateway, recording=True, stream=True)
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if not killed and has_audio(line):
                    killed = True
                    replicas = {each.address: each for each in gateway.fleet[KILLED]}
                    (name,) = [
                        each
                        for each in replica_names(KILLED, REPLICAS[KILLED])
                        if replicas[running.processes[each].address].sessions
                    ]
                    os.kill(running.processes[name].pid, signal.SIGKILL)
    assert killed, "no audio came"
    lost = recorder.found(*LOST)[0]
    again = [at for at in recorder.found(OPENED) if at > lost]
    assert len(again) == len(ROLES), "it was continued once"
    spoken = [at for at in recorder.found(NEXT) if at > again[-1]]
    return recorder.walk(lost, spoken[0])


async def measure() -> dict[str, Any]:
    """Measure all request types of this checkout."""
    stages = {role: StageConfig(replicas=REPLICAS[role]) for role in ROLES}
    settings = gateway_config(
        http_listen="127.0.0.1:0",
        grpc_listen="127.0.0.1:0",
        max_ahead_seconds=0.4,
        max_stage_ahead_seconds=0.4,
    )
    deployment = Deployment(model=str(CHECKOUT / EMBEDDED_MODEL), stages=stages, gateway=settings)
    async with Launcher(deployment, only=ROLES) as running:
        addresses = {
            role: tuple(running.processes[name].address for name in replica_names(role, count))
            for role, count in REPLICAS.items()
        }
        async with (
            Gateway(with_addresses(deployment, addresses)) as gateway,
            httpx.AsyncClient(base_url=f"http://{gateway.http_address}", timeout=120) as http,
        ):
            await gateway.wait_ready()
            return {
                "chat of text to the last SegmentOpen": await walk_to_stages(
                    http, gateway, recording=False
                ),
                "chat with a recording to the last SegmentOpen": await walk_to_stages(
                    http, gateway, recording=True
                ),
                "killed replica to the first continued sample": await walk_of_failover(
                    http, gateway, running
                ),
            }


if __name__ == "__main__":
    json.dump(asyncio.run(measure()), sys.stdout)
