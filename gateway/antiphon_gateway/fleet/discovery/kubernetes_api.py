"""Lists and watches EndpointSlices through the Kubernetes API. Every request has a deadline.

This is the only module that imports the `kubernetes` package, because importing it takes a second
or two. The package provides the parts that are difficult to get right, namely the API's address,
its certificates and the token. Its `Watch` class isn't used, because it retries with a resource
version that the API has just rejected as too old, and because it reads without a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
from kubernetes.aio import client
from kubernetes.aio.config import ConfigException, load_kube_config
from kubernetes.aio.config.incluster_config import (
    SERVICE_CERT_FILENAME,
    SERVICE_TOKEN_FILENAME,
    InClusterConfigLoader,
)

from antiphon.deployment.schema import DiscoveryConfig
from antiphon.errors import Unavailable, shortened
from antiphon_gateway.fleet.discovery.slices import SERVICE_LABEL, SliceList, Status, WatchEvent

NAMESPACE_FILE = Path(SERVICE_TOKEN_FILENAME).with_name("namespace")

_BROKEN = (aiohttp.ClientError, OSError, TimeoutError, ConfigException, msgspec.DecodeError)
# If a line of the watch doesn't fit into its buffer, aiohttp raises a plain ValueError.
_UNREADABLE = (*_BROKEN, ValueError)
_MOST_OF_A_REFUSAL = 500
_BLOCK_BYTES = 1 << 16

_list_of = msgspec.json.Decoder(SliceList)
_event_of = msgspec.json.Decoder(WatchEvent)
_status_of = msgspec.json.Decoder(Status)


@contextlib.asynccontextmanager
async def open_slices(config: DiscoveryConfig, namespace: str) -> AsyncIterator[SliceApi]:
    """Open a new connection with the current credentials. Raises `Unavailable` if this fails.

    Each list uses a new connection, so that a broken connection is never reused.
    """
    try:
        async with asyncio.timeout(config.answer_timeout_s):
            settings = client.Configuration()
            if config.kubeconfig:
                await load_kube_config(
                    config.kubeconfig, client_configuration=settings, persist_config=False
                )
            # This takes at least 50 ms, because certificates have to be read. By default, these are
            # the system's.
            connection = await asyncio.to_thread(_connection, settings, bool(config.kubeconfig))
    except Exception as error:
        # The package can raise any exception if another process is writing to the file at the same
        # time.
        raise Unavailable(f"can't reach the Kubernetes API: {_told(error)}") from error
    async with connection:
        yield SliceApi(connection, config, namespace)


@dataclass(frozen=True)
class SliceApi:
    """Requests the EndpointSlices of all services in `config` from a single namespace."""

    connection: client.ApiClient
    config: DiscoveryConfig
    namespace: str

    async def list(self) -> SliceList:
        """Return all slices. Raises `Unavailable` if the response isn't complete in time."""
        try:
            async with asyncio.timeout(self.config.answer_timeout_s):
                answer = await self._ask({})
                try:
                    return _list_of.decode(await self._body(answer))
                finally:
                    answer.close()
        except _UNREADABLE as error:
            raise Unavailable(f"can't list the endpoint slices: {_told(error)}") from error

    async def watch(self, version: str) -> AsyncIterator[WatchEvent]:
        """Yield the events after a resource version for `relist_s` seconds. Raises `Unavailable` if
        the watch breaks.

        If the API ends the watch, this counts as a break, too. For this reason, the API is sent a
        timeout that is slightly longer than `relist_s`.
        """
        until = asyncio.get_running_loop().time() + self.config.relist_s
        watching = {
            "watch": True,
            "allow_watch_bookmarks": True,
            "resource_version": version,
            "timeout_seconds": math.ceil(self.config.relist_s) + 1,
        }
        try:
            async with asyncio.timeout(self.config.answer_timeout_s):
                answer = await self._ask(watching)
        except _UNREADABLE as error:
            raise Unavailable(f"can't watch the endpoint slices: {_told(error)}") from error
        try:
            while (event := await self._event(answer, until)) is not None:
                yield event
        finally:
            answer.close()

    async def _event(self, answer: aiohttp.ClientResponse, until: float) -> WatchEvent | None:
        """Return the next event, or None when the time is up."""
        try:
            async with asyncio.timeout_at(until) as deadline:
                line = await answer.content.readline()
            if not line.endswith(b"\n"):
                raise Unavailable("the watch of the endpoint slices was interrupted")
            event = _event_of.decode(line)
            if event.type == "ERROR":
                status = _status_of.decode(event.object)
                raise Unavailable(
                    f"the watch of the endpoint slices ended: {status.code} {status.reason}: "
                    f"{shortened(status.message or '', _MOST_OF_A_REFUSAL)}"
                )
        except _UNREADABLE as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                return None
            raise Unavailable(f"the watch of the endpoint slices failed: {_told(error)}") from error
        return event

    async def _ask(self, more: dict[str, object]) -> aiohttp.ClientResponse:
        """Send a request and return the response as soon as its headers have arrived. Raises
        `Unavailable` if the API refuses the request.
        """
        services = ",".join(sorted(self.config.services.values()))
        api = client.DiscoveryV1Api(self.connection)
        answer: aiohttp.ClientResponse = (
            await api.list_namespaced_endpoint_slice_without_preload_content(
                self.namespace,
                label_selector=f"{SERVICE_LABEL} in ({services})",
                # The callers read the response, and they set the deadlines that matter.
                _request_timeout=2 * (self.config.relist_s + self.config.answer_timeout_s),
                **more,
            )
        )
        if answer.status == 200:
            return answer
        try:
            said = (await answer.content.read(_MOST_OF_A_REFUSAL)).decode(errors="replace")
        finally:
            answer.close()
        remedy = (
            (
                "; the gateway's service account needs a Role with the verbs list and watch for "
                f"endpointslices (discovery.k8s.io) in the namespace {self.namespace}"
            )
            if answer.status in {401, 403}
            else ""
        )
        raise Unavailable(f"the Kubernetes API returned {answer.status}{remedy}: {said}")

    async def _body(self, answer: aiohttp.ClientResponse) -> bytes:
        """Read the whole body. Raises `Unavailable` if it is larger than `max_list_bytes`."""
        body = bytearray()
        async for block in answer.content.iter_chunked(_BLOCK_BYTES):
            body += block
            if len(body) > self.config.max_list_bytes:
                raise Unavailable(
                    "the list of endpoint slices exceeds gateway.discovery.max_list_bytes "
                    f"({self.config.max_list_bytes})"
                )
        return bytes(body)


def _connection(settings: client.Configuration, configured: bool) -> client.ApiClient:
    """Return a client that hasn't connected yet. Unless `configured` is true, it uses the address
    and the credentials that Kubernetes provides to every pod.
    """
    if not configured:
        InClusterConfigLoader(
            SERVICE_TOKEN_FILENAME, SERVICE_CERT_FILENAME, environ=os.environ
        ).load_and_set(settings)
    return client.ApiClient(settings)


def _told(error: BaseException) -> str:
    return str(error) or type(error).__name__
