"""A program that forks a child process for each JSON schema to compile. `SchemaChecker` starts it.

The server imports xgrammar and reads the vocabulary only once. It has a single thread, so that it
can fork, which takes milliseconds. Each child compiles a schema in the same way as vLLM, within
limits on CPU time and memory, and can be killed at any time. The compiler's warnings are written to
the child's report.

The standard input is the socket to the stage. If the stage closes it or dies, the server kills all
children and exits.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import resource
import select
import signal
import socket
from pathlib import Path
from typing import NoReturn

import msgspec
import xgrammar

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
    ToServer,
)

MAX_DESCRIPTORS = 32
MAX_REASON_CHARS = 500
_PR_SET_PDEATHSIG = 1
_STANDARD_ERROR = 2
_decoder = msgspec.json.Decoder(ToServer)


class SchemaServer:
    """The server's children, and its socket to the stage."""

    def __init__(self, stage: socket.socket) -> None:
        self._stage = stage
        self._numbers: dict[int, int] = {}  # Keyed by process ID.
        _, (descriptor,), _, _ = socket.recv_fds(stage, MAX_PACKET_BYTES, 1)
        vocabulary = msgspec.json.decode(_take(descriptor), type=SchemaVocabulary)
        self._any_whitespace = vocabulary.any_whitespace
        self._info = xgrammar.TokenizerInfo.deserialize_json(vocabulary.tokenizer_info)

    def serve(self) -> None:
        """Process packets until the stage has closed its end and all children have ended."""
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        # The interpreter writes signal numbers to this descriptor, no matter which call the signal
        # interrupts.
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._send(SchemaServerReady())
        try:
            while True:
                ready, _, _ = select.select([self._stage.fileno(), woken], [], [])
                if woken in ready:
                    os.read(woken, 4096)
                    self._reap()
                if self._stage.fileno() in ready and not self._obey():
                    return
        finally:
            for pid in self._numbers:
                os.kill(pid, signal.SIGKILL)
            for pid in self._numbers:
                os.waitpid(pid, 0)

    def _obey(self) -> bool:
        """Process one packet. Returns False at the end of the connection."""
        packet, descriptors, _, _ = socket.recv_fds(self._stage, MAX_PACKET_BYTES, 2)
        if not packet:
            return False
        match _decoder.decode(packet):
            case CheckSchema() as request:
                self._start(request, descriptors)
            case KillCompiler(number):
                for pid in [pid for pid, each in self._numbers.items() if each == number]:
                    # The process ID can't have been reused, because the child hasn't been reaped
                    # yet.
                    os.kill(pid, signal.SIGKILL)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _start(self, request: CheckSchema, descriptors: list[int]) -> None:
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            self._run_child(request, descriptors, parent)
        self._numbers[pid] = request.number
        self._send(CompilerStarted(request.number, pid))

    def _run_child(self, request: CheckSchema, descriptors: list[int], parent: int) -> NoReturn:
        """Compile one schema and then exit."""
        status = 1
        try:
            self._stage.close()
            schema, report = descriptors
            os.dup2(report, _STANDARD_ERROR)
            _confine(request, parent)
            reason = self._compile(_take(schema).decode(), request)
            if reason is not None:
                os.ftruncate(report, 0)
                os.pwrite(report, reason[:MAX_REASON_CHARS].encode(), 0)
            status = REJECTED if os.fstat(report).st_size else 0
        finally:
            # A child must never return to the server's loop.
            os._exit(status)

    def _compile(self, text: str, request: CheckSchema) -> str | None:
        """Compile a schema in the same way as vLLM. Returns xgrammar's reason for rejecting it, or
        None if it is accepted.
        """
        # This timer supports fractions of a second, and counts the CPU time of all threads.
        signal.setitimer(signal.ITIMER_PROF, min(request.parse_cpu_s, request.cpu_s))
        try:
            xgrammar.Grammar.from_json_schema(json.loads(text))
            signal.setitimer(signal.ITIMER_PROF, request.cpu_s)
            compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
            compiled = compiler.compile_json_schema(
                text,
                any_whitespace=self._any_whitespace,
                separators=None if self._any_whitespace else (",", ":"),
            )
            if compiled.memory_size_bytes > request.compiled_bytes:
                os._exit(TOO_LARGE)
            # The first step of a reply includes work that the compiler has deferred.
            matcher = xgrammar.GrammarMatcher(compiled)
            mask = xgrammar.allocate_token_bitmask(1, self._info.vocab_size)
            matcher.fill_next_token_bitmask(mask, 0)
        except MemoryError:
            raise
        except Exception as error:
            if "bad_alloc" in str(error):
                raise MemoryError from error
            return str(error) or type(error).__name__
        return None

    def _reap(self) -> None:
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._send(CompilerEnded(self._numbers.pop(pid), os.waitstatus_to_exitcode(status)))

    def _send(self, message: FromServer) -> None:
        self._stage.send(msgspec.json.encode(message))


def _take(descriptor: int) -> bytes:
    """Return the content of an in-memory file."""
    with (
        open(descriptor, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return content[:]


def _confine(request: CheckSchema, parent: int) -> None:
    """Limit this process's resources, drop everything that belongs to the server, and arrange for
    the process to exit when the server does.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGXFSZ, signal.SIGPIPE, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.nice(request.niceness)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for limit, most in (
        # This limit is in whole seconds, but can't be ignored.
        (resource.RLIMIT_CPU, math.ceil(request.cpu_s) + 1),
        (resource.RLIMIT_AS, mapped + request.memory_bytes),
        (resource.RLIMIT_FSIZE, MAX_REPORT_BYTES),
        (resource.RLIMIT_NOFILE, MAX_DESCRIPTORS),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))


def main() -> None:
    """Serve the stage at the other end of standard input."""
    with socket.socket(fileno=os.dup(0)) as stage:
        # A child's standard input is not the socket to the stage.
        os.close(0)
        os.open(os.devnull, os.O_RDWR)
        SchemaServer(stage).serve()


if __name__ == "__main__":
    main()
