"""The part of the Kubernetes API that serves EndpointSlices over HTTP, with faults on demand.

As in the real API, there are list and watch requests with resource versions, label selectors,
bookmarks, `timeoutSeconds` and status 410. Faults only occur when a test triggers them: a missed
event, reset connections, a silent server, or a stopped server.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from antiphon.deployment.discovery import DiscoveryConfig

Json = dict[str, Any]

PORTS = {DiscoveryConfig().port_name: DiscoveryConfig().port}
"""The ports of pods. They are the same as in the chart."""


@dataclass(frozen=True)
class Asked:
    """A request that the server has received."""

    path: str
    query: dict[str, str]
    authorization: str

    @property
    def watches(self) -> bool:
        """Whether the request is a watch and not a list."""
        return self.query.get("watch") in {"true", "True", "1"}


@dataclass
class _Watch:
    """A client that is watching: its selector, and the events that still have to be sent to it."""

    writer: asyncio.StreamWriter
    selects: Callable[[Json], bool]
    sent: int
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    silent: bool = False


class FakeApi:
    """Serves `namespace` at `url` between `start` and `stop`. The server can be started again after
    it has been stopped.
    """

    def __init__(self, namespace: str = "speech") -> None:
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._slices: dict[str, Json] = {}
        self._version = 100
        # Events with their versions. Events up to version `_compacted` have been discarded.
        self._events: list[tuple[int, str, Json]] = []
        self._compacted = 100
        self._watches: list[_Watch] = []
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._port = 0
        self._refusals: list[int] = []
        self._silent = False
        self._changed = asyncio.Condition()
        self.asked: list[Asked] = []
        self.piece_bytes = 1 << 16

    @property
    def url(self) -> str:
        """The URL of the server, which remains valid after it has stopped."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def told(self) -> list[tuple[int, str, Json]]:
        """The versions, kinds and objects of all events since the start or the most recent 410."""
        return list(self._events)

    @property
    def lists(self) -> int:
        """The number of list requests so far."""
        return sum(not asked.watches for asked in self.asked)

    @property
    def watching(self) -> int:
        """The number of clients that are currently watching, as far as the server knows."""
        return len(self._watches)

    async def start(self) -> None:
        """Start to listen. After a restart, the port is the same as before."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, and reset every connection."""
        if self._server is not None:
            self._server.close()
        self.reset()
        if self._connections:
            await asyncio.wait(list(self._connections))

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true. It is checked whenever a request arrives or a watch
        begins.
        """
        async with self._changed:
            await self._changed.wait_for(condition)

    # The objects that exist.

    def put(
        self,
        name: str,
        service: str,
        endpoints: list[Json],
        family: str = "IPv4",
        ports: Mapping[str, int] | None = None,
    ) -> None:
        """Create or change a slice. `ports` contains the ports of its pods by name."""
        kind = "MODIFIED" if name in self._slices else "ADDED"
        self._slices[name] = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
            "addressType": family,
            "endpoints": endpoints,
            "ports": [
                {"name": n, "port": port, "protocol": "TCP"} for n, port in (ports or PORTS).items()
            ],
        }
        self._tell(kind, name, self._slices[name])

    def delete(self, name: str) -> None:
        """Delete a slice."""
        self._tell("DELETED", name, self._slices.pop(name))

    def delete_untold(self, name: str) -> None:
        """Delete a slice without sending a watch event."""
        self._version += 1
        del self._slices[name]

    # The faults.

    def refuse(self, *statuses: int) -> None:
        """Respond to the next requests with these statuses."""
        self._refusals.extend(statuses)

    def forget_events(self) -> None:
        """Discard all events so far, so that watches from an earlier version receive a 410."""
        self._version += 1
        self._compacted = self._version
        self._events.clear()
        for watch in self._watches:
            watch.sent = 0

    def bookmark(self) -> None:
        """Send the current version to all watches, without an object."""
        kind = {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1"}
        meta = {"metadata": {"resourceVersion": str(self._version)}}
        self._events.append((self._version, "BOOKMARK", kind | meta))
        self._wake()

    def say_raw(self, line: bytes) -> None:
        """Send these bytes to all watches as a chunk."""
        for watch in self._watches:
            watch.writer.write(_chunk(line))

    def go_silent(self) -> None:
        """Stop sending data on all existing connections without closing them, as if they were
        half-open.
        """
        for watch in self._watches:
            watch.silent = True

    def hang(self, *, hanging: bool) -> None:
        """Accept connections and requests, but don't respond to them."""
        self._silent = hanging

    def reset(self) -> None:
        """Break all connections with a RST."""
        for task, writer in self._connections.items():
            writer.transport.abort()
            task.cancel()

    def end_watches(self) -> None:
        """End every watch with a complete response, like an API server that shuts down."""
        for watch in self._watches:
            watch.writer.write(b"0\r\n\r\n")
            watch.silent = True

    def _tell(self, kind: str, name: str, each: Json) -> None:
        self._version += 1
        each["metadata"]["resourceVersion"] = str(self._version)
        self._events.append((self._version, kind, json.loads(json.dumps(each))))
        self._wake()

    def _wake(self) -> None:
        for watch in self._watches:
            watch.wake.set()

    # HTTP.

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # The client has gone.
        except asyncio.CancelledError:
            return  # Reset: the stream's own callback would report a cancellation.
        finally:
            del self._connections[task]
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Respond to a request. Returns whether another one may follow on the same connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        target = urlsplit(head.split(" ", 2)[1])
        found = re.search(r"^authorization: *(.*?)\r$", head, re.IGNORECASE | re.MULTILINE)
        query = {key: values[-1] for key, values in parse_qs(target.query).items()}
        asked = Asked(unquote(target.path), query, found[1] if found else "")
        self.asked.append(asked)
        await self._tell_change()
        if self._silent:
            await asyncio.Event().wait()
        if self._refusals:
            _respond(writer, self._refusals.pop(0))
        elif asked.path != self._path:
            _respond(writer, 403)
        elif asked.watches:
            await self._serve_watch(asked, reader, writer)
            return False
        else:
            _respond(writer, 200, self._list(asked))
        await writer.drain()
        return True

    def _list(self, asked: Asked) -> Json:
        selects = _selector(asked.query.get("labelSelector", ""))
        return {
            "kind": "EndpointSliceList",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": {"resourceVersion": str(self._version)},
            "items": [each for each in self._slices.values() if selects(each)],
        }

    async def _serve_watch(
        self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send events until `timeoutSeconds` have passed or the client disconnects."""
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        since = int(asked.query["resourceVersion"])
        if since < self._compacted:
            gone = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired"}
            gone["message"] = f"too old resource version: {since} ({self._compacted})"
            writer.write(_chunk(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n"))
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return
        begun = sum(version <= since for version, _, _ in self._events)
        selects = _selector(asked.query.get("labelSelector", ""))
        watch = _Watch(writer, selects, begun)
        self._watches.append(watch)
        await self._tell_change()
        sending = asyncio.create_task(self._send_events(watch))
        gone_away = asyncio.create_task(reader.read())
        try:
            seconds = float(asked.query.get("timeoutSeconds", "3600"))
            await asyncio.wait(
                {sending, gone_away}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            writer.write(b"0\r\n\r\n")
        finally:
            self._watches.remove(watch)
            for task in (sending, gone_away):
                task.cancel()
            await asyncio.gather(sending, gone_away, return_exceptions=True)
            await self._tell_change()

    async def _send_events(self, watch: _Watch) -> None:
        while True:
            watch.wake.clear()
            while watch.sent < len(self._events) and not watch.silent:
                _, kind, each = self._events[watch.sent]
                watch.sent += 1
                if kind == "BOOKMARK" or watch.selects(each):
                    self._write_event(watch.writer, kind, each)
                    await watch.writer.drain()
            await watch.wake.wait()

    def _write_event(self, writer: asyncio.StreamWriter, kind: str, each: Json) -> None:
        """Write an event as a line, using chunks whose boundaries don't have to match those of the
        line.
        """
        line = json.dumps({"type": kind, "object": each}).encode() + b"\n"
        for begin in range(0, len(line), self.piece_bytes):
            writer.write(_chunk(line[begin : begin + self.piece_bytes]))

    async def _tell_change(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def serve_api(namespace: str = "speech") -> AsyncIterator[FakeApi]:
    """Run a `FakeApi` within the context."""
    api = FakeApi(namespace)
    await api.start()
    try:
        yield api
    finally:
        await api.stop()


def endpoint(
    address: str, uid: str = "", *, ready: bool = True, terminating: bool = False, **more: Any
) -> Json:
    """Return an endpoint in the form in which the controller writes it. A terminating pod isn't
    ready, but may still be serving.
    """
    told: Json = {
        "addresses": [address],
        "conditions": {
            "ready": ready and not terminating,
            "serving": ready,
            "terminating": terminating,
        },
        **more,
    }
    if uid:
        told["targetRef"] = {"kind": "Pod", "name": uid, "uid": uid}
    return told


def kubeconfig(url: str) -> Json:
    """Return a client configuration for the API at this URL."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "here", "user": {"token": "of-a-pod"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
    }


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def _respond(writer: asyncio.StreamWriter, status: int, body: Json | None = None) -> None:
    told = body or {"kind": "Status", "status": "Failure", "code": status, "message": "refused"}
    content = json.dumps(told).encode()
    writer.write(
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n".encode()
        + content
    )


def _selector(text: str) -> Callable[[Json], bool]:
    """Convert `key=value` and `key in (a,b)` terms, joined by commas, to a predicate on objects."""
    wanted: dict[str, set[str]] = {}
    for term in re.split(r",(?![^(]*\))", text) if text else ():
        found = re.fullmatch(r"\s*([\w./-]+)\s*(?:=+\s*([\w.-]+)|in\s*\(([^)]*)\))\s*", term)
        assert found, f"a selector that is not understood: {term}"
        wanted[found[1]] = {found[2]} if found[2] else set(found[3].replace(" ", "").split(","))
    return lambda each: all(
        each["metadata"]["labels"].get(key) in values for key, values in wanted.items()
    )
