"""`python -m benchmarks.hostile`: send malicious files while other clients use the service.

Real services run with the checkpoint in the repository. Four regular clients send 5 seconds of
audio, as WAV and WebM in turn, and their time to first audio is measured. This is done without
attackers and with eight attackers, in turn. The attackers send one type of malicious file, either
once or repeatedly (`--flood`). After the attackers have left, the CPU time that the gateway and its
child processes use within a second is measured.

A row passes if every regular answer is complete, if the median time to first audio is at most twice
the time without attackers in the same minute, and if the CPU is idle afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import os
import statistics
import sys
import time
import wave
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import msgspec
import numpy as np

from antiphon.deployment.schema import Deployment
from antiphon_tools.launcher.console import Console
from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.launcher.plan import application_root, resolve, with_gateway
from antiphon_tools.load.target import LOOPBACK
from benchmarks.hostile import files

HONEST, ATTACKERS = 4, 8
PATIENCE_S = 60.0
IDLE_S = 0.1
"""The permitted CPU time within a second after the attackers have left. The gateway's own health
checks use some of it.
"""

BOMBS: Mapping[str, Callable[[], bytes]] = {
    "vorbis, 255 channels": lambda: files.stretched(
        files.sound_file("OGG", "VORBIS", 255, 8_000, 4.0), 590.0, 8_000
    ),
    "vorbis, 768 kHz": lambda: files.stretched(files.vorbis_at(768_000), 590.0, 768_000),
    "opus, 255 channels": lambda: files.stretched(files.opus_of_255_channels(), 590.0, 48_000),
    "opus in webm, 255 channels": lambda: files.in_webm(
        files.stretched(files.opus_of_255_channels(), 590.0, 48_000)
    ),
    "opus in webm, 590 s": lambda: files.in_webm(
        files.stretched(files.sound_file("OGG", "OPUS", 2, 48_000, 4.0), 590.0, 48_000)
    ),
    "flac, 8 x 96 kHz, 70 s": lambda: files.sound_file("FLAC", "PCM_16", 8, 96_000, 70.0),
    "wav, 8 x 96 kHz, 5 s": lambda: files.sound_file("WAV", "PCM_U8", 8, 96_000, 5.0),
    "mp3 with junk": lambda: files.mp3_with_junk(junk_words=26_000),
    "png, 60,000 x 60,000": lambda: files.png_of(60_000, 60_000),
    "jpeg, 1,000 scans": lambda: files.jpeg_of_scans(1_000),
    "webp, 16,000 x 16,000": lambda: files.webp_of(16_000, 16_000, b"VP8X"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """The results for regular clients and one type of malicious file. Times are in seconds."""

    bomb: str
    bytes: int
    sent: int
    statuses: tuple[int, ...]
    answers: int
    failed: int
    undisturbed_median: float
    first_audio_median: float
    first_audio_most: float
    cpu_after: float


def speech(seconds: float) -> bytes:
    """Return a WAV file with noise."""
    file = io.BytesIO()
    samples = np.random.default_rng(0).integers(-3_000, 3_000, round(16_000 * seconds), np.int16)
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(samples.tobytes())
    return file.getvalue()


def part_of(file: bytes) -> dict[str, object]:
    """Return the message part that contains a file."""
    data = base64.b64encode(file).decode()
    for kind, head in (("png", b"\x89PNG"), ("jpeg", b"\xff\xd8"), ("webp", b"RIFF")):
        if file.startswith(head) and file[8:12] != b"WAVE":
            return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{data}"}}
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def body_of(file: bytes) -> bytes:
    """Return a chat request for a spoken answer."""
    return msgspec.json.encode(
        {
            "model": "antiphon-demo",
            "messages": [{"role": "user", "content": [part_of(file)]}],
            "modalities": ["text", "audio"],
            "audio": {"voice": "cantor", "format": "pcm16"},
            "stream": True,
            "max_tokens": 24,
        }
    )


async def asked(http: httpx.AsyncClient, body: bytes) -> float:
    """Return the seconds to the first audio of an answer, which is read to its end.

    Raises an error if the request fails or there is no audio.
    """
    began, first = time.perf_counter(), 0.0
    done = False
    async with http.stream("POST", "/v1/chat/completions", content=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not first and '"audio":{"data"' in line.replace(" ", ""):
                first = time.perf_counter() - began
            done |= line == "data: [DONE]"
    if not (first and done):
        raise RuntimeError("an answer ended without audio")
    return first


async def attack(http: httpx.AsyncClient, body: bytes, statuses: list[int], *, flood: bool) -> None:
    """Send a malicious file, repeatedly if `flood` is true."""
    while True:
        response = await http.post("/v1/chat/completions", content=body)
        statuses.append(response.status_code)
        if not flood:
            return


def cpu_s(root: int) -> float:
    """Return the CPU time of a process and of all its descendants so far."""
    children: dict[int, list[int]] = {}
    times: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            told = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended.
        pid = int(entry.name)
        children.setdefault(int(told[1]), []).append(pid)
        times[pid] = (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")
    waiting, total = [root], 0.0
    while waiting:
        pid = waiting.pop()
        total += times.get(pid, 0.0)
        waiting += children.get(pid, [])
    return total


async def measure(
    http: httpx.AsyncClient, gateway: int, bomb: str, rounds: int, *, flood: bool
) -> Row:
    """Measure regular clients without and with attackers, in turn."""
    attacking = body_of(file := BOMBS[bomb]())
    sound = speech(5.0)
    bodies = [body_of(sound), body_of(files.wav_in_webm(sound))] * (HONEST // 2)
    statuses: list[int] = []
    calm: list[float | BaseException] = []
    disturbed: list[float | BaseException] = []

    async def honest() -> list[float | BaseException]:
        return await asyncio.gather(*(asked(http, each) for each in bodies), return_exceptions=True)

    for _ in range(rounds):
        calm += await honest()
        attackers = [
            asyncio.create_task(attack(http, attacking, statuses, flood=flood))
            for _ in range(ATTACKERS)
        ]
        disturbed += await honest()
        for each in attackers:
            each.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)
    # Requests that were sent before the attackers left may still be processed. After that, the CPU
    # must be idle.
    await asyncio.sleep(1.0)
    before = cpu_s(gateway)
    await asyncio.sleep(1.0)
    after = cpu_s(gateway) - before
    times = [each for each in disturbed if isinstance(each, float)]
    for each in (*calm, *disturbed):
        if not isinstance(each, float):
            print(f"  {bomb}: {each!r}", file=sys.stderr)
    return Row(
        bomb,
        len(file),
        len(statuses),
        tuple(sorted(set(statuses))),
        len(times),
        len(disturbed) - len(times),
        statistics.median(each for each in calm if isinstance(each, float)),
        statistics.median(times) if times else 0.0,
        max(times, default=0.0),
        after,
    )


def kept(row: Row) -> bool:
    """Return whether a row meets the expectations."""
    slow = row.first_audio_median > 2 * row.undisturbed_median
    return not (row.failed or slow or row.cpu_after > IDLE_S)


async def run(bombs: list[str], rounds: int, json: Path | None, *, flood: bool) -> bool:
    """Measure all files, and return whether all of them meet the expectations."""
    deployment, _ = resolve(Deployment(), application_root())
    endpoints = {"http_listen": LOOPBACK, "grpc_listen": LOOPBACK}
    console = Console(sys.stdout, output=False)
    async with Launcher(with_gateway(deployment, endpoints), report=console) as running:
        gateway = running.processes["gateway"].pid
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=running.http_url, timeout=PATIENCE_S, limits=limits
        ) as http:
            await measure(http, gateway, bombs[0], 1, flood=False)
            rows: list[Row] = []
            for bomb in bombs:
                rows.append(await measure(http, gateway, bomb, rounds, flood=flood))
                print(line(rows[-1]), flush=True)
                write(json, rows)
    return all(map(kept, rows))


def write(path: Path | None, rows: list[Row]) -> None:
    """Write the results so far."""
    if path is not None:
        told = [asdict(each) for each in rows]
        path.write_bytes(msgspec.json.format(msgspec.json.encode(told)))


def line(row: Row) -> str:
    """Format a row as text."""
    seconds = f"{row.first_audio_median:.3f} s ({row.first_audio_most:.3f})"
    times = (
        f"{row.first_audio_median / row.undisturbed_median:.2f} x {row.undisturbed_median:.3f} s"
    )
    sent = f"{row.sent} of {row.bytes} B sent, {row.statuses}"
    verdict = "kept" if kept(row) else "MISSED"
    return (
        f"{row.bomb:28} first audio {seconds} {times}, {row.answers} answers, {row.failed} failed, "
        f"CPU after {row.cpu_after:.2f} s; {sent}: {verdict}"
    )


def main() -> int:
    """Run the benchmark. The exit status states whether all expectations were met."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hostile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bombs", nargs="+", choices=BOMBS, default=list(BOMBS))
    parser.add_argument("--rounds", type=int, default=5, help="answers of each client (5)")
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--flood", action="store_true", help="attackers send over and over")
    given = parser.parse_args()
    good = asyncio.run(run(given.bombs, given.rounds, given.json, flood=given.flood))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
