"""Compiles each new JSON schema in a child process before vLLM receives it.

xgrammar limits neither the time nor the memory that it uses to compile a schema, and vLLM parses
schemas on its caller's event loop. A schema is therefore only passed to vLLM after a child process
has compiled it within certain limits. vLLM then compiles it again. The checker stores the result
under the schema's digest, so that an identical schema doesn't have to be checked again.

A child process occupies a slot of a lane. Every schema starts in the first lane. If it uses up its
CPU time in this lane, it starts again in the next one. As a result, expensive schemas only delay
each other. When a schema has been accepted, vLLM spends the same amount of time on it again. This
happens on a thread of its engine's process that doesn't yield. The last lane's CPU time limits this
delay as well.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import antiphon
from antiphon.errors import InvalidArgument, ResourceExhausted, Unavailable
from antiphon_services.vllm.schema_messages import (
    MAX_PACKET_BYTES,
    MAX_REPORT_BYTES,
    REJECTED,
    TOO_LARGE,
    CheckSchema,
    CompilerEnded,
    CompilerStarted,
    FromServer,
    KillCompiler,
    SchemaServerReady,
    SchemaVocabulary,
)

FIELD = "json_schema"


@dataclass(frozen=True, slots=True)
class SchemaLane:
    """The settings of a lane: the CPU time for each schema, the number of child processes that can
    run at the same time, and their niceness.
    """

    cpu_s: float
    processes: int
    niceness: int


LANES = (
    # An object that consists of a few strings, numbers and lists takes 0.02 to 0.14 s with 150,000
    # tokens.
    SchemaLane(cpu_s=0.25, processes=2, niceness=5),
    # In a text with a maxLength, each character adds to the time. With 150,000 tokens, 20
    # characters take 0.7 s.
    SchemaLane(cpu_s=2.0, processes=1, niceness=10),
)
PARSE_CPU_S = 0.1
"""The maximum CPU time for parsing, in seconds. It is short because vLLM parses schemas on the
event loop that serves all requests.
"""
MEMORY_BYTES = 512 << 20
COMPILED_BYTES = 32 << 20
"""The maximum size of a compiled schema, which vLLM keeps while a request with this schema is
running. For comparison, a maxLength of 20 takes 3.3 MB.
"""
MAX_WAITING = 64
"""The maximum number of schemas in each lane that wait for a slot or for the server to start."""
DEADLINE_S = 60.0
"""The maximum time, in seconds, that a schema can wait for a slot and the server. The same limit
applies to its child process.
"""
END_TIMEOUT_S = 5.0
"""The maximum time, in seconds, that the server may take to exit, or that a child may take to exit
after being killed. If it takes longer, the server is killed.
"""
MAX_KEPT = 1024
"""The maximum number of stored results."""
RETRY_AFTER_S = 5.0

_MODULE = "antiphon_services.vllm.schema_server"
_ROOTS = (Path(__file__).parents[2], Path(antiphon.__file__).parents[1])
"""The directories from which this package and the library are imported."""
# The environment variables that the server needs. They don't include any of the stage's secrets.
_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "HOME")
_OUT_OF_TIME = (-signal.SIGPROF, -signal.SIGXCPU)
_SIMPLER = "use fewer or smaller repetitions, length limits and patterns"
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)

_log = logging.getLogger(__name__)
_decoder = msgspec.json.Decoder(FromServer)


@dataclass(slots=True)
class _RunningSchemaServer:
    """The schema server's process. `ended` and `pids` contain the results and the process IDs of
    its children by number.
    """

    process: subprocess.Popen[bytes]
    control: socket.socket
    ready: asyncio.Future[bool]
    ended: dict[int, asyncio.Future[CompilerEnded]] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Queue:
    """The free slots of a lane, and the number of schemas that are waiting for a slot."""

    lane: SchemaLane
    slots: asyncio.Semaphore
    waiting: int = 0


class SchemaChecker:
    """Checks schemas on one event loop. It must be closed after use.

    `start` starts the server. If the server is lost, the next check starts it again.
    """

    def __init__(self, vocabulary: SchemaVocabulary, lanes: tuple[SchemaLane, ...] = LANES) -> None:
        self._vocabulary = msgspec.json.encode(vocabulary)
        self._queues = [_Queue(lane, asyncio.Semaphore(lane.processes)) for lane in lanes]
        self._outcomes: OrderedDict[bytes, str] = OrderedDict()
        """The result for each digest: the reason why the schema was rejected, or an empty string if
        it was accepted.
        """
        self._numbers = itertools.count()
        self._server: _RunningSchemaServer | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def running(self) -> int:
        """The number of child processes that are still running."""
        return len(self._server.ended) if self._server else 0

    @property
    def pids(self) -> tuple[int, ...]:
        """The process IDs of the server and its running children."""
        server = self._server
        return (server.process.pid, *server.pids.values()) if server else ()

    @property
    def kept(self) -> int:
        """The number of schemas whose results are stored."""
        return len(self._outcomes)

    def start(self) -> None:
        """Start the server if it isn't running. If this fails, the next check reports the
        reason.
        """
        try:
            self._running_server()
        except Unavailable as error:
            _log.warning("%s", error)

    async def check(self, schema: str) -> None:
        """Return normally if vLLM can compile the schema within the limits.

        If this call is cancelled, the child process is killed. Raises `InvalidArgument` if the
        schema exceeds a limit or xgrammar can't enforce it. Raises `ResourceExhausted` if too many
        schemas are waiting or a deadline has passed, and `Unavailable` if a process was killed from
        outside or can't be started.
        """
        digest = hashlib.sha256(schema.encode()).digest()
        for queue in self._queues:
            if digest not in self._outcomes:
                await self._try(schema, digest, queue)
        if digest not in self._outcomes:
            most_s = self._queues[-1].lane.cpu_s
            self._keep(digest, f"takes more than {most_s:g} s of CPU time to compile; {_SIMPLER}")
        self._outcomes.move_to_end(digest)
        if reason := self._outcomes[digest]:
            raise InvalidArgument(f"{FIELD}: {reason}", field=FIELD)

    async def close(self) -> None:
        """Kill all children and then end the server."""
        self._closed = True
        if (server := self._server) is not None:
            self._lose(server)
        await asyncio.gather(*self._ending)

    async def _try(self, schema: str, digest: bytes, queue: _Queue) -> None:
        """Compile the schema in one of the lane's slots. The result is stored unless the CPU time
        has been used up.
        """
        server = await self._ready_server(queue)
        ended: asyncio.Future[CompilerEnded] | None = None
        with _file("schema") as source, _file("report") as report:
            try:
                # An identical schema may have been checked while this one was waiting.
                if digest in self._outcomes:
                    return
                source.write(schema.encode())
                request = CheckSchema(
                    number=next(self._numbers),
                    cpu_s=queue.lane.cpu_s,
                    parse_cpu_s=PARSE_CPU_S,
                    memory_bytes=MEMORY_BYTES,
                    compiled_bytes=COMPILED_BYTES,
                    niceness=queue.lane.niceness,
                )
                ended = self._send(server, request, (source, report))
            finally:
                if ended is None:
                    queue.slots.release()
            # The slot remains in use until the process has ended, even if the caller is cancelled.
            ended.add_done_callback(lambda _: queue.slots.release())
            try:
                async with asyncio.timeout(DEADLINE_S):
                    end = await asyncio.shield(ended)
            except TimeoutError as error:
                self._kill(server, request.number)
                raise _busy("has no CPU time left to check the schema") from error
            except asyncio.CancelledError:
                self._kill(server, request.number)
                raise
            if end.status not in _OUT_OF_TIME:
                content = os.pread(report.fileno(), MAX_REPORT_BYTES, 0)
                self._keep(digest, _outcome(end.status, content))

    async def _ready_server(self, queue: _Queue) -> _RunningSchemaServer:
        """Wait for the server and for one of the lane's slots. Take the slot and return the
        server.
        """
        if queue.waiting >= MAX_WAITING:
            raise _busy("is checking too many schemas")
        queue.waiting += 1
        try:
            async with asyncio.timeout(DEADLINE_S):
                await queue.slots.acquire()
                try:
                    server = self._running_server()
                    if not await asyncio.shield(server.ready):
                        raise _lost("could not be started")
                except BaseException:
                    queue.slots.release()
                    raise
        except TimeoutError as error:
            raise _busy("is checking too many schemas") from error
        finally:
            queue.waiting -= 1
        return server

    def _keep(self, digest: bytes, outcome: str) -> None:
        self._outcomes[digest] = outcome
        if len(self._outcomes) > MAX_KEPT:
            self._outcomes.popitem(last=False)

    def _running_server(self) -> _RunningSchemaServer:
        """Return the server, starting it first if necessary. Raises `Unavailable` if it can't be
        started.
        """
        if self._server is not None:
            return self._server
        if self._closed:
            raise Unavailable("the stage is shutting down")
        try:
            self._server = server = _start_server(self._vocabulary)
        except OSError as error:
            raise _lost(f"can't be started: {error}") from error
        asyncio.get_running_loop().add_reader(server.control, self._receive, server)
        return server

    def _send(
        self, server: _RunningSchemaServer, request: CheckSchema, files: tuple[io.FileIO, ...]
    ) -> asyncio.Future[CompilerEnded]:
        """Ask the server to start a child and return a future for the result. Raises `Unavailable`
        if there is no server.
        """
        ended: asyncio.Future[CompilerEnded] = asyncio.get_running_loop().create_future()
        packet = msgspec.json.encode(request)
        try:
            socket.send_fds(server.control, [packet], [each.fileno() for each in files])
        except OSError as error:
            self._lose(server)
            raise _lost("has ended") from error
        server.ended[request.number] = ended
        return ended

    def _kill(self, server: _RunningSchemaServer, number: int) -> None:
        """Kill a child. If it doesn't end in time, kill the server and thereby all children."""
        if (ended := server.ended.get(number)) is None:
            return
        try:
            server.control.send(msgspec.json.encode(KillCompiler(number)))
        except OSError:
            self._lose(server)
            return
        late = asyncio.get_running_loop().call_later(END_TIMEOUT_S, self._lose, server)
        ended.add_done_callback(lambda _: late.cancel())

    def _receive(self, server: _RunningSchemaServer) -> None:
        """Read one packet. If there is none, the server has ended."""
        try:
            packet = server.control.recv(MAX_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._lose(server)
            return
        match _decoder.decode(packet):
            case SchemaServerReady():
                server.ready.set_result(True)
            case CompilerStarted(number, pid):
                server.pids[number] = pid
            case CompilerEnded(number) as end:
                server.pids.pop(number, None)
                server.ended.pop(number).set_result(end)

    def _lose(self, server: _RunningSchemaServer) -> None:
        """Continue without a server. Its children die along with it."""
        if server is not self._server:
            return
        self._server = None
        loop = asyncio.get_running_loop()
        loop.remove_reader(server.control)
        # A running server ends as soon as it reads this.
        server.control.close()
        ending = loop.create_task(self._end(server))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _end(self, server: _RunningSchemaServer) -> None:
        """Wait for the server's process to end and then fail all pending requests."""
        status = await asyncio.to_thread(_reap, server.process)
        if not self._closed:
            _log.warning("the schema server exited with status %d", status)
        if not server.ready.done():
            server.ready.set_result(False)
        for number, ended in server.ended.items():
            ended.set_result(CompilerEnded(number, -signal.SIGKILL))
        server.ended.clear()
        server.pids.clear()


def _start_server(vocabulary: bytes) -> _RunningSchemaServer:
    """Start a new server process. Raises `OSError` if it can't be started."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    path = os.pathsep.join(map(str, _ROOTS))
    try:
        mine.setblocking(False)
        with its, _file("vocabulary") as content:
            content.write(vocabulary)
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE],
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                # The server can only fork because it has a single thread. It doesn't use an
                # accelerator.
                env=environment
                | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
                | {"CUDA_VISIBLE_DEVICES": ""},
            )
            socket.send_fds(mine, [b"{}"], [content.fileno()])
    except BaseException:
        mine.close()
        raise
    return _RunningSchemaServer(process, mine, asyncio.get_running_loop().create_future())


def _reap(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process to end and return its exit status. If it takes too long, the process is
    killed.
    """
    try:
        return process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _file(name: str) -> io.FileIO:
    """Return an empty in-memory file."""
    return io.FileIO(os.memfd_create(f"antiphon-{name}", os.MFD_CLOEXEC), "r+")


def _busy(what: str) -> ResourceExhausted:
    return ResourceExhausted(f"the stage {what}; try again", retry_after_s=RETRY_AFTER_S)


def _lost(what: str) -> Unavailable:
    return Unavailable(
        f"the schema server {what}; send the request again", retry_after_s=RETRY_AFTER_S
    )


def _outcome(status: int, report: bytes) -> str:
    """Return the reason why a schema was rejected, based on its child's report, or an empty string
    if the schema was accepted.

    Raises `Unavailable` if the child was killed from outside.
    """
    if status == 0:
        return ""
    if status in _KILLED:
        raise Unavailable(
            "the process that was checking the schema was killed; send the request again",
            retry_after_s=RETRY_AFTER_S,
        )
    if status in (REJECTED, -signal.SIGXFSZ):
        line, _, _ = report.decode(errors="replace").strip().partition("\n")
        # A warning describes the part of the schema that xgrammar would ignore.
        return f"is not supported by vLLM: {line.rpartition('Warning: ')[2]}"
    if status == TOO_LARGE:
        return f"takes more than {COMPILED_BYTES >> 20} MB of memory when compiled; {_SIMPLER}"
    _log.warning("the process that compiled a schema exited with status %d", status)
    return f"crashes its compiler, or takes more than {MEMORY_BYTES >> 20} MB of memory; {_SIMPLER}"
