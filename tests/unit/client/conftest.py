"""Servers for the client's tests."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from antiphon.v1 import speech_pb2_grpc
from antiphon_testkit.certificates import Certificates, make_certificates
from tests.unit.client.speech_server import Answer, Speech


@pytest.fixture
def serve() -> Iterator[Callable[..., Speech]]:
    """Start a server with a given answer, perhaps with TLS; all stop at the end of the test."""
    running: list[tuple[grpc.Server, ThreadPoolExecutor, Speech]] = []

    def start(
        answer: Answer,
        credentials: grpc.ServerCredentials | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> Speech:
        workers = ThreadPoolExecutor(max_workers=2)
        server = grpc.server(workers)
        speech = Speech(answer)
        speech_pb2_grpc.add_SpeechServiceServicer_to_server(speech, server)
        if credentials is None:
            speech.port = server.add_insecure_port(f"{host}:{port}")
        else:
            speech.port = server.add_secure_port(f"{host}:{port}", credentials)
        speech.address = f"{host}:{speech.port}"
        server.start()
        running.append((server, workers, speech))
        return speech

    yield start
    for server, workers, speech in running:
        speech.hang.set()
        server.stop(grace=None).wait()
        workers.shutdown()


@pytest.fixture
def deaf_address() -> Iterator[str]:
    """A port that is taken, but on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority, a server's certificate and a client's."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))
