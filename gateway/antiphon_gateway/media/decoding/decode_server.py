"""Forks a child process for every file that is decoded. This program is started by
`DecoderProcesses`.

Each gateway starts the server once. The server imports the decoding libraries and is small and
single-threaded, so a fork takes only one millisecond, whereas starting Python would take two
hundred. Each child decodes one file within limits on CPU time, memory and output. It can be killed
at any time. Any damage that a file does to a decoder is limited to its child process, and messages
from decoders don't end up in the gateway's log.

Standard input is the socket to the gateway. When the gateway closes it or dies, all children are
killed. Standard output and standard error are /dev/null, both for the server and for its children.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import resource
import select
import signal
import socket
from typing import NoReturn

import msgspec

from antiphon_gateway.media.decoding.bounds import (
    CostlyRecording,
    RecordingTooLong,
    RejectedRecording,
)
from antiphon_gateway.media.decoding.decode_messages import (
    COSTLY,
    FAILED,
    NOT_STARTED,
    REJECTED,
    ChildEnded,
    ChildStarted,
    ClosedStream,
    DecodeReport,
    DecodeRequest,
    FromServer,
    KillChild,
    MessageLines,
    ToServer,
    send_line,
)
from antiphon_gateway.media.decoding.muxed_headers import check_muxed
from antiphon_gateway.media.decoding.sound_file import decode_sound_file

MAX_REPORT_CHARS = 500
MAX_DESCRIPTORS = 32
_PR_SET_PDEATHSIG = 1
_decoder = msgspec.json.Decoder(ToServer)


class DecodeServer:
    """The server's children and its socket to the gateway."""

    def __init__(self, gateway: socket.socket) -> None:
        self._gateway = gateway
        self._reader = MessageLines(gateway)
        self._numbers: dict[int, int] = {}  # Keyed by process ID.

    def serve(self) -> None:
        """Process messages until the gateway has closed its end and no children are left."""
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        # The number of each signal is written here, regardless of which call it interrupts.
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            while True:
                ready, _, _ = select.select([self._gateway.fileno(), woken], [], [])
                if woken in ready:
                    os.read(woken, 4096)
                    self._reap()
                if self._gateway.fileno() in ready:
                    for line in self._reader.read():
                        self._obey(line)
        except ClosedStream:
            return
        finally:
            for pid in self._numbers:
                os.kill(pid, signal.SIGKILL)
            for pid in self._numbers:
                os.waitpid(pid, 0)

    def _obey(self, line: bytes) -> None:
        """Process one message."""
        match _decoder.decode(line):
            case DecodeRequest() as request:
                descriptors = self._reader.take_descriptors()
                self._start(request, descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
            case KillChild(number):
                for pid in [pid for pid, each in self._numbers.items() if each == number]:
                    # The child hasn't been reaped yet, so this process ID still belongs to it.
                    os.kill(pid, signal.SIGKILL)

    def _start(self, request: DecodeRequest, descriptors: list[int]) -> None:
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            self._gateway.close()
            self._reader.close()
            run_child(request, descriptors, parent)
        self._numbers[pid] = request.number
        self._tell(ChildStarted(request.number, pid))

    def _reap(self) -> None:
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._tell(ChildEnded(self._numbers.pop(pid), os.waitstatus_to_exitcode(status)))

    def _tell(self, message: FromServer) -> None:
        send_line(self._gateway, message)


def run_child(request: DecodeRequest, descriptors: list[int], parent: int) -> NoReturn:
    """Decode one file and then exit."""
    status = 1
    try:
        source, out, report = descriptors
        _confine(request, parent)
        status = _run(request, source, out, report)
    finally:
        # A child must never return to the server's loop.
        os._exit(status)


def _run(request: DecodeRequest, source: int, out: int, report: int) -> int:
    """Decode with libsndfile, or check the headers and run the program. Returns the exit status."""
    try:
        os.lseek(source, 0, os.SEEK_SET)
        if not request.program:
            decode_sound_file(
                source, request.name, request.rate_hz, request.most_s, request.cost_samples, out
            )
            return 0
        with mmap.mmap(source, 0, access=mmap.ACCESS_READ) as file:
            check_muxed(file, request.name, request.most_s, request.cost_samples)
    except CostlyRecording:
        return COSTLY
    except RecordingTooLong as error:
        found, status = DecodeReport(str(error), error.seconds), REJECTED
    except RejectedRecording as error:
        found, status = DecodeReport(str(error)), REJECTED
    except Exception as error:
        found, status = DecodeReport(f"{type(error).__name__}: {error}"[:MAX_REPORT_CHARS]), FAILED
    else:
        return _become(request.program, source, out)
    os.write(report, msgspec.json.encode(found))
    return status


def _become(program: tuple[str, ...], source: int, out: int) -> int:
    """Run the program in place of this process. This returns only if the program can't be
    started.
    """
    os.dup2(source, 0)
    os.dup2(out, 1)
    try:
        os.execv(program[0], program)
    except OSError:
        return NOT_STARTED


def _confine(request: DecodeRequest, parent: int) -> None:
    """Limit the resources of this process and make sure that it dies together with the server.

    Only Linux is able to end a process together with its parent (PR_SET_PDEATHSIG), even after the
    process has been replaced by a program. On other systems, if a server is killed, its children
    run until they reach their CPU time limit.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGXFSZ, signal.SIGPIPE, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    if (prctl := getattr(ctypes.CDLL(None), "prctl", None)) is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.nice(request.niceness)
    # The timer supports fractions of a second. It stays active even if this process is replaced by
    # a program.
    signal.setitimer(signal.ITIMER_PROF, request.cpu_s)
    for limit, most in (
        # This limit is in whole seconds, and it can't be ignored.
        (resource.RLIMIT_CPU, math.ceil(request.cpu_s) + 1),
        (resource.RLIMIT_FSIZE, request.out_bytes),
        (resource.RLIMIT_NOFILE, MAX_DESCRIPTORS),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    # Linux never rejects a lower limit. macOS rejects any limit below the address space that every
    # process already uses, so on macOS there is no limit on a child's memory.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (request.memory_bytes, request.memory_bytes))


def main() -> None:
    """Serve the gateway that is connected to standard input."""
    with socket.socket(fileno=os.dup(0)) as gateway:
        # A child's standard input must not be the socket to the gateway.
        os.close(0)
        os.open(os.devnull, os.O_RDWR)
        DecodeServer(gateway).serve()


if __name__ == "__main__":
    main()
