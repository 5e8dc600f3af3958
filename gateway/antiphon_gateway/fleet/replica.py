"""A single stage process from the gateway's point of view, with its channel, health and load.

It is kept up to date by `antiphon_gateway.fleet.replica_watch`. A stage that reports NOT_SERVING
keeps its running requests, because it may be draining. The load is received on a separate stream.
If that stream isn't available, only this gateway's own sessions are counted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

import grpc

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import Unavailable
from antiphon.transport.abandoned_calls import free_soon
from antiphon.transport.channel import CHANNEL_OPTIONS, WATCHED_KEEPALIVE_MS
from antiphon.transport.mutual_tls import ServiceTls, open_channel
from antiphon.v1 import stage_pb2
from antiphon.wire.status import is_typed
from antiphon.wire.stubs import stage_stub
from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint
from antiphon_gateway.fleet.picker import Location

if TYPE_CHECKING:
    from antiphon.v1.stage_pb2_grpc import StageServiceAsyncStub

log = logging.getLogger("gateway.stages")

STREAM_WINDOW_BYTES = 1 << 20
CLOSING_S = 5.0
"""How many seconds calls on an abandoned connection have to complete."""
Lost = Callable[[Unavailable], None]
ReplicaState = Literal["ready", "starting", "draining", "ejected", "away"]
"""The state of a replica.

`ready`: It accepts sessions. `starting`: It hasn't served yet. `draining`: It is completing its
running sessions or is already gone. `ejected`: It receives no sessions, because sessions on it have
failed. `away`: It has served before, but isn't serving now.
"""
STATES: tuple[ReplicaState, ...] = get_args(ReplicaState)


class Replica:
    """The state of a single stage process. `changed` is called whenever its eligibility or its
    sessions change.

    `endpoint` is reported by discovery. Its address may later be used by another replica. When the
    process restarts, its `boot_id` changes.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        config: GatewayConfig,
        changed: Callable[[Replica], None],
        tls: ServiceTls | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.role, self.address = endpoint.role, endpoint.address
        # This gateway's segments that hold or have requested a slot on this replica, and the
        # sessions that may open more segments.
        self.segments = self.sessions = 0
        # Whether the replica may receive sessions. This is decided by its stage, which also takes
        # failed sessions into account.
        self.placed = False
        # Set when discovery no longer reports the replica. Sessions that are already running
        # continue.
        self.gone = False
        # The latest load report, or None if the load can't be read.
        self.reported: stage_pb2.StageLoad | None = None
        # How many session messages and load reports were read as soon as they arrived.
        self.outputs = self.reports = 0
        # When the latest load report was read, on the clock of `time.monotonic`.
        self.reported_at = -math.inf
        self.description: stage_pb2.DescribeResponse | None = None
        # The latest description. It is kept while the replica is down.
        self.told: stage_pb2.DescribeResponse | None = None
        self.reason = "not reached yet"
        # When the replica was lost while it was serving, on the clock of `time.monotonic`.
        self.lost_at = -math.inf
        self._config = config
        self._changed = changed
        self._holders: set[Lost] = set()
        # Called when the replica stops accepting sessions, possibly more than once.
        self.on_leaving: set[Callable[[], None]] = set()
        # Called when the connection has been abandoned and another one is used.
        self.on_replaced: set[Callable[[], None]] = set()
        self._tls = tls
        # Channels that have been abandoned and are being closed.
        self._closing: set[asyncio.Task[None]] = set()

    @cached_property
    def channel(self) -> grpc.aio.Channel:
        """The channel to the process. It is created on first use. This takes time, and discovery
        may report a thousand replicas at once.
        """
        options = _channel_options(self._config.health.reconnect_s)
        return open_channel(self._tls, self.address, self.role, options)

    @cached_property
    def stub(self) -> StageServiceAsyncStub:
        """The gRPC stub for the process."""
        return stage_stub(self.channel)

    @property
    def state(self) -> ReplicaState:
        """The state of the replica as seen by this gateway."""
        if self.leaving:
            return "draining"
        if self.description is None:
            return "starting" if self.told is None else "away"
        return "ready" if self.placed else "ejected"

    @property
    def ready(self) -> bool:
        """Whether the replica is serving and has described itself."""
        return self.description is not None

    @property
    def draining(self) -> bool:
        """Whether the replica is only finishing its current sessions."""
        told = self.reported is not None and self.reported.draining
        return told or self.endpoint.terminating

    @property
    def leaving(self) -> bool:
        """Whether the replica is draining or gone. Conversations on it should move to another
        replica.
        """
        return self.draining or self.gone

    @property
    def busy(self) -> bool:
        """Whether the process reports that any gateway is using a slot."""
        return self.reported is not None and self.reported.open_segments > 0

    @property
    def idle(self) -> bool:
        """Whether the process has no sessions, both according to its own reports and according to
        this gateway.
        """
        reported = self.reported
        return not self.segments and reported is not None and not reported.open_sessions

    @property
    def takes_sessions(self) -> bool:
        """Whether the replica accepts new sessions, according to the process and to discovery."""
        return self.ready and not self.leaving

    @property
    def boot_id(self) -> str:
        """The boot ID of the process that sent the latest description."""
        return self.told.boot_id if self.told is not None else ""

    @property
    def load(self) -> float:
        """The load as a fraction of the slots. It is the sum of this gateway's own segments and the
        segments that the replica reports. Some segments may be counted twice, but this affects all
        replicas equally.
        """
        reported, slots = 0, 0
        if self.reported is not None:
            reported, slots = self.reported.open_segments, self.reported.slots
        if self.told is not None:
            slots = slots or self.told.slots
        return (self.segments + reported) / max(slots, 1)

    @property
    def is_full(self) -> bool:
        """Whether no slot is free, either according to this gateway or according to the replica."""
        slots = self.told.slots if self.told is not None else 0
        taken = self.reported.open_segments if self.reported is not None else 0
        return max(self.segments, taken) >= max(slots, 1)

    @property
    def signs(self) -> tuple[int, int]:
        """The counters `outputs` and `reports`. As long as the replica is alive, at least one of
        them increases.
        """
        return self.outputs, self.reports

    @property
    def location(self) -> Location:
        """The location of the process."""
        host = self.told.host_id if self.told is not None else ""
        place = self.endpoint
        return Location(host, place.uid, place.node, place.zone)

    def moved(self, endpoint: Endpoint) -> None:
        """Apply a change to the endpoint reported by discovery."""
        self.endpoint = endpoint
        self._tell()

    def leave(self) -> None:
        """Record that discovery no longer reports the replica."""
        self.gone = True
        self._tell()

    def segment_began(self) -> None:
        """Record that this gateway has requested a slot."""
        self.segments += 1

    def segment_ended(self) -> None:
        """Record that a segment has released its slot."""
        self.segments -= 1
        if not self.placed:
            self._tell()

    def hold(self, lost: Lost) -> None:
        """Register a function that is called if the stage stops responding."""
        self._holders.add(lost)

    def let_go(self, lost: Lost) -> None:
        """Unregister a function that was passed to `hold`. This can be called more than once."""
        self._holders.discard(lost)

    def _tell(self) -> None:
        """Report a change. If a callback raises an error, it is logged, so that it can't end the
        monitoring.
        """
        try:
            self._changed(self)
            if self.leaving:
                for told in tuple(self.on_leaving):
                    told()
        except Exception:
            log.exception("updating the state of the stage %s failed", self.role)

    def open_anew(self) -> None:
        """Abandon the connection and use a new one from now on. Calls on the old connection have
        `CLOSING_S` seconds to complete and are then cancelled.
        """
        closing = asyncio.create_task(self.channel.close(CLOSING_S))
        self._closing.add(closing)
        closing.add_done_callback(self._closed)
        for made_with_it in ("channel", "stub"):
            self.__dict__.pop(made_with_it, None)
        for told in tuple(self.on_replaced):
            told()

    def _closed(self, closing: asyncio.Task[None]) -> None:
        self._closing.discard(closing)
        free_soon()

    def misread(self, channel: grpc.aio.Channel, failure: grpc.aio.AioRpcError) -> None:
        """Abandon the connection after a call on it has failed because the server couldn't make
        sense of the call's headers.

        A byte in the method name or in a header may have been corrupted in transit. HTTP/2 caches
        headers for as long as the connection exists, so every later call would fail, too.
        """
        unknown = failure.code() is grpc.StatusCode.UNIMPLEMENTED
        # gRPC's error message for an invalid header.
        illegal = "Illegal header" in (failure.details() or "")
        # Another call may have abandoned the connection already.
        if (unknown or illegal) and not is_typed(failure) and channel is self.channel:
            log.warning(
                "stage %s at %s: a call failed with a protocol error (%s): reconnecting",
                self.role,
                self.address,
                failure.details(),
            )
            self.open_anew()

    async def close(self) -> None:
        """Close all channels. There must not be any running calls."""
        await asyncio.gather(self.channel.close(), *self._closing)

    def take_load(self, load: stage_pb2.StageLoad | None) -> None:
        """Apply a load report, or None if there are no reports any more."""
        drained, busy = self.draining, self.busy
        self.reported = load
        if load is not None:
            self.reports += 1
            self.reported_at = time.monotonic()
        if drained != self.draining or busy != self.busy:
            self._tell()

    def rise(self, description: stage_pb2.DescribeResponse) -> None:
        """Record that the replica is serving and store its description. This is logged if the
        replica wasn't ready or its process is new.
        """
        if not self.ready or self.boot_id != description.boot_id:
            log.info("stage %s at %s is ready", self.role, self.address)
        self.description = self.told = description
        self.reason = ""
        self._tell()

    def fall(self, reason: str, *, may_be_starting: bool = False, says_so: bool = False) -> None:
        """Record that the replica isn't serving. This is logged as a warning unless the replica has
        never served, in which case it may still be starting. If the replica `says_so` itself, it
        isn't lost.
        """
        if says_so:
            self.lost_at = -math.inf
        elif self.ready:
            self.lost_at = time.monotonic()
        if reason != self.reason:
            if may_be_starting and self.told is None:
                log.info("stage %s at %s is not ready yet: %s", self.role, self.address, reason)
            else:
                log.warning("stage %s at %s is down: %s", self.role, self.address, reason)
        self.description, self.reason = None, reason
        self._tell()

    def lose(self, why: str) -> None:
        """End all sessions on the replica."""
        for lost in list(self._holders):
            lost(
                Unavailable(
                    f"the stage {self.role} at {self.address} was lost: {why}", stage=self.role
                )
            )


def _channel_options(reconnect_s: float) -> list[tuple[str, int]]:
    """Return the common channel options together with the deployment's reconnect interval."""
    options = dict(CHANNEL_OPTIONS)
    options["grpc.keepalive_time_ms"] = WATCHED_KEEPALIVE_MS
    # With bandwidth probes, a reply would be sent for every message. Without them, each stream has
    # a fixed window.
    options["grpc.http2.bdp_probe"] = 0
    options["grpc.http2.lookahead_bytes"] = STREAM_WINDOW_BYTES
    options["grpc.max_reconnect_backoff_ms"] = max(100, round(reconnect_s * 1000))
    return list(options.items())
