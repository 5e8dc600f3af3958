"""The gateway's side of the decode server. It sends files and receives samples.

While a child process is running, it takes up a slot of a lane, and each lane has its own slots. A
file starts in the first lane of `LANES` whose size limit it doesn't exceed. If the file's header
declares more samples than the lane accepts, or if its CPU time is used up, the child leaves the
lane. The file is then decoded again in the next lane, which has more CPU time and a lower priority.
As a result, files that are expensive to decode can delay only each other, regardless of what their
headers declare.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import logging
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

import antiphon
from antiphon.errors import Unavailable
from antiphon.values.chunk import Tensor
from antiphon_gateway.admission.fair_slots import FairSlots
from antiphon_gateway.media.decoding.bounds import SPARE_S, RecordingTooLong, RejectedRecording
from antiphon_gateway.media.decoding.decode_messages import (
    COSTLY,
    FAILED,
    MAX_REPORT_BYTES,
    NOT_STARTED,
    REJECTED,
    ChildEnded,
    ChildStarted,
    DecodeReport,
    DecodeRequest,
    FromServer,
    KillChild,
    MessageLines,
    send_line,
)

log = logging.getLogger("gateway.media")


@dataclass(frozen=True, slots=True)
class DecodingLane:
    """The limits on files in one lane.

    A lane limits the CPU time, the file size in bytes, and the number of samples that a header can
    declare. All channels are counted. `niceness` applies to the child processes, which give way to
    the gateway and to stages on the same host.
    """

    cpu_s: float
    file_bytes: int
    cost_samples: int
    niceness: int


_ANY = sys.maxsize
LANES = (
    # Half a minute of Opus in WebM has 230 kB and takes 0.13 s, most of which is spent on starting
    # FFmpeg. The headers of live recordings and of MP3 don't contain a length, so the size limits
    # their cost here.
    DecodingLane(cpu_s=0.25, file_bytes=256 << 10, cost_samples=8_000_000, niceness=0),
    # Ten minutes of stereo take 1 to 2 s.
    DecodingLane(cpu_s=2.0, file_bytes=32 << 20, cost_samples=_ANY, niceness=10),
    DecodingLane(cpu_s=30.0, file_bytes=_ANY, cost_samples=_ANY, niceness=19),
)
MEMORY_BYTES = 768 << 20
"""The maximum size of a child's address space, including its libraries."""
_SAMPLE_BYTES = 4
_PIECE_BYTES = 1 << 20
_MODULE = "antiphon_gateway.media.decoding.decode_server"
_ROOTS = (Path(__file__).parents[3], Path(antiphon.__file__).parents[1])
"""The directories from which this package and the library are imported."""
# The environment variables that a child needs. The gateway's secrets aren't among them.
_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")
_TOO_COSTLY = (-signal.SIGPROF, COSTLY)
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)
_FFMPEG_STOPPED = 255

_decoder = msgspec.json.Decoder(FromServer)
_report = msgspec.json.Decoder(DecodeReport)


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """A file of type `name` that is to be decoded to `rate_hz`. It can be up to `most_s` seconds
    long. It is decoded by `program`, or by libsndfile if there is none.
    """

    name: str
    rate_hz: int
    most_s: float
    program: tuple[str, ...] = ()

    @property
    def out_bytes(self) -> int:
        """The maximum size of the result in bytes."""
        return int((self.most_s + 2 * SPARE_S) * self.rate_hz) * _SAMPLE_BYTES


class _TooCostly(Exception):
    """Raised if a file is too expensive for its lane. Either its child has used up its CPU time, or
    its header declares too many samples.
    """


@dataclass(slots=True)
class _RunningServer:
    """The decode server's process and its children. `ended` and `pids` contain the children's
    results and process IDs by request number.
    """

    process: subprocess.Popen[bytes]
    control: socket.socket
    reader: MessageLines
    ended: dict[int, asyncio.Future[ChildEnded]] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)


class DecoderProcesses:
    """Decodes files in child processes. Each lane has up to `processes` of them.

    The server is started by `start` or by the first file, and again if it was lost. This object
    must be closed when it is no longer needed.
    """

    def __init__(self, processes: int) -> None:
        self._lanes: tuple[tuple[DecodingLane, FairSlots], ...] = tuple(
            (lane, FairSlots(processes)) for lane in LANES
        )
        self._numbers = itertools.count()
        self._server: _RunningServer | None = None
        self._closed = False

    @property
    def running(self) -> int:
        """The number of child processes that are still running."""
        return len(self._server.ended) if self._server else 0

    @property
    def pids(self) -> tuple[int, ...]:
        """The IDs of the child processes that are running."""
        return tuple(self._server.pids.values()) if self._server else ()

    async def decode(self, data: bytes, job: DecodeJob, key: str) -> Tensor:
        """Return the file's samples as mono float32. Keys take turns, and the turns of each `key`
        alternate between its smallest file and its oldest file.

        If this is cancelled, the child process is killed. Raises `RejectedRecording` if the file
        exceeds a limit or can't be decoded, and `Unavailable` if something else killed the process.
        """
        for lane, slots in self._lanes:
            if len(data) > lane.file_bytes:
                continue
            with contextlib.suppress(_TooCostly):
                return await self._decode(data, job, key, lane, slots)
        most_s = self._lanes[-1][0].cpu_s
        raise RejectedRecording(f"takes more than {most_s:g} s of CPU time to decode")

    def start(self) -> None:
        """Start the server ahead of time, so that the first file doesn't have to wait for it."""
        self._running_server()

    async def close(self) -> None:
        """Kill all running processes and end the server."""
        self._closed = True
        if (server := self._server) is not None:
            self._lose(server)
            # The server ends when it notices that the connection is closed.
            await asyncio.to_thread(server.process.wait)

    async def _decode(
        self, data: bytes, job: DecodeJob, key: str, lane: DecodingLane, slots: FairSlots
    ) -> Tensor:
        """Run one child process. Raises the errors of `decode`, and `_TooCostly`."""
        await slots.take(key, len(data))
        ended: asyncio.Future[ChildEnded] | None = None
        source, out, report = map(_empty_file, ("file", "samples", "report"))
        with source, out, report:
            try:
                await _write(source, data)
                request = DecodeRequest(
                    number=next(self._numbers),
                    name=job.name,
                    rate_hz=job.rate_hz,
                    most_s=job.most_s,
                    program=job.program,
                    cpu_s=lane.cpu_s,
                    cost_samples=lane.cost_samples,
                    memory_bytes=MEMORY_BYTES,
                    out_bytes=max(job.out_bytes, MAX_REPORT_BYTES),
                    niceness=lane.niceness,
                )
                ended = self._send(request, (source, out, report))
            finally:
                if ended is None:
                    slots.free()
            # Whatever happens to the caller, the slot stays in use until the process has ended.
            ended.add_done_callback(lambda _: slots.free())
            try:
                end = await asyncio.shield(ended)
            except asyncio.CancelledError:
                self._kill(request.number)
                raise
            if end.status in _TOO_COSTLY:
                raise _TooCostly
            _check(end.status, job, os.pread(report.fileno(), MAX_REPORT_BYTES, 0))
            return _samples(out.fileno(), job.out_bytes)

    def _running_server(self) -> _RunningServer:
        if self._server is not None:
            return self._server
        if self._closed:
            raise Unavailable("the gateway is shutting down")
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        mine.setblocking(False)
        environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        path = os.pathsep.join(map(str, _ROOTS))
        with its:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE],
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environment | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            )
        self._server = server = _RunningServer(process, mine, MessageLines(mine))
        asyncio.get_running_loop().add_reader(mine, self._receive, server)
        return server

    def _send(
        self, request: DecodeRequest, files: tuple[io.FileIO, ...]
    ) -> asyncio.Future[ChildEnded]:
        """Start a child and return a future for its end. Raises `Unavailable` if there is no
        server.
        """
        server = self._running_server()
        ended: asyncio.Future[ChildEnded] = asyncio.get_running_loop().create_future()
        try:
            send_line(server.control, request, tuple(each.fileno() for each in files))
        except OSError as error:
            self._lose(server)
            raise Unavailable(f"the decode server has exited: {error.strerror}") from error
        server.ended[request.number] = ended
        return ended

    def _kill(self, number: int) -> None:
        server = self._server
        if server is not None and number in server.ended:
            send_line(server.control, KillChild(number))

    def _receive(self, server: _RunningServer) -> None:
        """Read messages from the server. The stream is closed if the server has ended."""
        try:
            lines = server.reader.read()
        except OSError:
            self._lose(server)
            log.warning("the decode server exited with status %d", server.process.wait())
            return
        for line in lines:
            match _decoder.decode(line):
                case ChildStarted(number, pid):
                    server.pids[number] = pid
                case ChildEnded(number) as end:
                    server.pids.pop(number, None)
                    server.ended.pop(number).set_result(end)

    def _lose(self, server: _RunningServer) -> None:
        """Continue without a server. Its children die with it."""
        if server is not self._server:
            return
        self._server = None
        asyncio.get_running_loop().remove_reader(server.control)
        server.control.close()
        for number, ended in server.ended.items():
            ended.set_result(ChildEnded(number, -signal.SIGKILL))


def _empty_file(name: str) -> io.FileIO:
    """Return a file that has no name. On Linux, it exists only in memory."""
    if hasattr(os, "memfd_create"):
        return io.FileIO(os.memfd_create(f"antiphon-{name}", os.MFD_CLOEXEC), "r+")
    descriptor, path = tempfile.mkstemp(prefix=f"antiphon-{name}-")
    os.unlink(path)
    return io.FileIO(descriptor, "r+")


async def _write(file: io.FileIO, data: bytes) -> None:
    """Write data to a file and let other tasks run after each piece."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest[:_PIECE_BYTES]) :]
        await asyncio.sleep(0)


def _check(status: int, job: DecodeJob, report: bytes) -> None:
    """Raise an error if a child didn't decode its file."""
    if status == 0:
        return
    if status in _KILLED or (job.program and status == _FFMPEG_STOPPED):
        raise Unavailable("the process that was decoding the recording was killed; send it again")
    if status == NOT_STARTED:
        raise Unavailable(f"can't start {job.program[0]}")
    if status == REJECTED:
        found = _report.decode(report)
        raise RecordingTooLong(found.seconds) if found.seconds else RejectedRecording(found.message)
    if status == FAILED:
        log.warning("decoding %s failed: %s", job.name, _report.decode(report).message)
    raise RejectedRecording(f"can't be decoded as {job.name}")


def _samples(descriptor: int, most_bytes: int) -> Tensor:
    """Return a child's samples without copying them. Their memory is freed together with
    the array.
    """
    size = min(os.fstat(descriptor).st_size, most_bytes) // _SAMPLE_BYTES * _SAMPLE_BYTES
    if not size:
        return np.empty(0, np.float32)
    return np.frombuffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ), np.float32)
