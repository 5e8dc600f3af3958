"""A real server whose calls follow a script, for any method of any service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from antiphon.wire.convert import error_to_proto
from antiphon.wire.status import ERROR_METADATA_KEY
from tests.unit.client.call_scripts import PLAIN_SAID, TYPED_ERROR, End, Script, Step

BOUND_S = 120.0
"""Catches what hangs. Nothing waits for so long."""
DAMAGED = b"\xff\xff\xff"


@dataclass(frozen=True)
class Scripted:
    """A method that follows the script: its path, and the messages that it sends before and after.

    `last_words` is what the server sends for a typed error, if it ends the call in order after it.
    """

    path: str
    writes: bool
    message: Callable[[int], bytes]
    takes_first: bool = False
    before: bytes | None = None
    after: bytes | None = None
    last_words: bytes | None = None


@dataclass
class ScriptedServer(grpc.GenericRpcHandler):
    """Plays the script for each call of the scripted method. Other methods get `answer`."""

    scripted: Scripted
    script: Script
    steps: int = 0
    progress: threading.Condition = field(default_factory=threading.Condition)
    ended: threading.Event = field(default_factory=threading.Event)
    """The server has ended the call."""
    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    """The call has ended on the server's side, whoever ended it."""

    answer: Callable[[grpc.ServicerContext], bytes] = lambda context: b""

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=4)
        self._server = grpc.server(self._threads, handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        """Return when the script's call has ended too."""
        self._server.stop(None).wait()
        self._threads.shutdown(wait=True)

    def wait_steps(self, steps: int) -> None:
        """Wait until the server has done so many steps."""
        with self.progress:
            assert self.progress.wait_for(lambda: self.steps >= steps, BOUND_S)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method != self.scripted.path:
            return grpc.unary_unary_rpc_method_handler(
                lambda request, context: self.answer(context)
            )
        if self.scripted.writes:
            return grpc.stream_stream_rpc_method_handler(self._play)
        return grpc.unary_stream_rpc_method_handler(
            lambda request, context: self._play(iter(()), context)
        )

    def _play(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        self.begun.set()
        if not context.add_callback(self._is_over):
            self._is_over()
        scripted, sent = self.scripted, 0
        try:
            if scripted.takes_first:
                next(requests, None)
            if scripted.before is not None:
                yield scripted.before
            for step in self.script.serving:
                if step is Step.SEND:
                    yield scripted.message(sent)
                    sent += 1
                else:
                    next(requests, None)
                with self.progress:
                    self.steps += 1
                    self.progress.notify_all()
        except grpc.RpcError:
            return  # The client has left.
        yield from self._end(context)

    def _end(self, context: grpc.ServicerContext) -> Iterator[bytes]:
        match self.script.end:
            case End.OK:
                if self.scripted.after is not None:
                    yield self.scripted.after
            case End.TYPED if self.scripted.last_words is not None:
                yield self.scripted.last_words
            case End.TYPED:
                error = error_to_proto(TYPED_ERROR).SerializeToString()
                context.set_trailing_metadata(((ERROR_METADATA_KEY, error),))
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, TYPED_ERROR.message)
            case End.PLAIN:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, PLAIN_SAID)
            case End.CUT:
                self._server.stop(None)
            case End.DAMAGED:
                yield DAMAGED
                self.ended.set()
                self.over.wait()
            case End.SILENT:
                self.over.wait()

    def _is_over(self) -> None:
        self.over.set()
        self.ended.set()
