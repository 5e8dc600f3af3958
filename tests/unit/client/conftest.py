"""Servers for the client's tests."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from speech_server import Answer, Speech

from antiphon.v1 import speech_pb2_grpc


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Speech]]:
    """Start a server with a given answer; all stop at the end of the test."""
    running: list[tuple[grpc.Server, Speech]] = []

    def start(answer: Answer) -> Speech:
        server = grpc.server(ThreadPoolExecutor(max_workers=2))
        speech = Speech(answer)
        speech_pb2_grpc.add_SpeechServiceServicer_to_server(speech, server)
        speech.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        running.append((server, speech))
        return speech

    yield start
    for server, speech in running:
        speech.hang.set()
        server.stop(grace=None).wait()


@pytest.fixture
def deaf_address() -> Iterator[str]:
    """A port that is taken, but on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"
