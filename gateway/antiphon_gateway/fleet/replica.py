"""The gateway's state of one stage process: a channel, its health, and its load.

`antiphon_gateway.fleet.replica_watch` updates it. A stage that reports NOT_SERVING keeps its
running requests, because it may be draining. A separate stream reports the load. Without that
stream, only the sessions of this gateway count.
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
"""For what still runs on a connection that was given up."""
Lost = Callable[[Unavailable], None]
ReplicaState = Literal["ready", "starting", "draining", "ejected", "away"]
"""It may get sessions; it has never served yet; it finishes what it has, or is gone; it gets none
because those that it had have failed; it has served, and doesn't now."""
STATES: tuple[ReplicaState, ...] = get_args(ReplicaState)


class Replica:
    """The state of one stage process. `changed` is called on every change of its eligibility or
    sessions.

    Discovery reports its `endpoint`. The same address may belong to another replica later; a
    process that was restarted has another `boot_id`.
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
        # Segments of this gateway's that have a slot here, or have asked for one, and sessions
        # that may open more.
        self.segments = self.sessions = 0
        # Whether it may get sessions, as its stage decides by what becomes of them, too.
        self.placed = False
        # Discovery knows it no more; what runs on it goes on.
        self.gone = False
        # What it said last of its load; None while it cannot be asked.
        self.reported: stage_pb2.StageLoad | None = None
        # Messages of its sessions, and reports of its load, that were read as they came.
        self.outputs = self.reports = 0
        # When the latest report of its load was read, as `time.monotonic` has it.
        self.reported_at = -math.inf
        self.description: stage_pb2.DescribeResponse | None = None
        # Its latest description, kept while it is down.
        self.told: stage_pb2.DescribeResponse | None = None
        self.reason = "not reached yet"
        self._config = config
        self._changed = changed
        self._holders: set[Lost] = set()
        # Told, perhaps more than once, when it is to get nothing new.
        self.on_leaving: set[Callable[[], None]] = set()
        self._tls = tls
        # Channels that were given up.
        self._closing: set[asyncio.Task[None]] = set()

    @cached_property
    def channel(self) -> grpc.aio.Channel:
        """The channel to the process. It is created on first use, because this takes time and
        discovery may report a thousand replicas at once."""
        options = _channel_options(self._config.health.reconnect_s)
        return open_channel(self._tls, self.address, self.role, options)

    @cached_property
    def stub(self) -> StageServiceAsyncStub:
        """What it is asked by."""
        return stage_stub(self.channel)

    @property
    def state(self) -> ReplicaState:
        """What it is to this gateway, in a word."""
        if self.leaving:
            return "draining"
        if self.description is None:
            return "starting" if self.told is None else "away"
        return "ready" if self.placed else "ejected"

    @property
    def ready(self) -> bool:
        """Whether it serves and has described itself."""
        return self.description is not None

    @property
    def draining(self) -> bool:
        """Whether it finishes what it has and is to get nothing new."""
        told = self.reported is not None and self.reported.draining
        return told or self.endpoint.terminating

    @property
    def leaving(self) -> bool:
        """Whether it will not be back: who keeps a session there had better go."""
        return self.draining or self.gone

    @property
    def busy(self) -> bool:
        """Whether the process reports a used slot, of any gateway."""
        return self.reported is not None and self.reported.open_segments > 0

    @property
    def idle(self) -> bool:
        """Whether the process has no session, as far as it reports and this gateway knows."""
        reported = self.reported
        return not self.segments and reported is not None and not reported.open_sessions

    @property
    def takes_sessions(self) -> bool:
        """Whether the process and discovery allow new sessions."""
        return self.ready and not self.leaving

    @property
    def boot_id(self) -> str:
        """Of the process that has described itself last."""
        return self.told.boot_id if self.told is not None else ""

    @property
    def load(self) -> float:
        """What it has to do, as a share of its slots: segments of this gateway, and those that it
        reports. It may count one twice, which is the same for all replicas."""
        reported, slots = 0, 0
        if self.reported is not None:
            reported, slots = self.reported.open_segments, self.reported.slots
        if self.told is not None:
            slots = slots or self.told.slots
        return (self.segments + reported) / max(slots, 1)

    @property
    def is_full(self) -> bool:
        """Whether no slot is free, as far as this gateway and the replica know."""
        slots = self.told.slots if self.told is not None else 0
        taken = self.reported.open_segments if self.reported is not None else 0
        return max(self.segments, taken) >= max(slots, 1)

    @property
    def signs(self) -> tuple[int, int]:
        """Counts of what it has sent: `outputs` and `reports`. They grow while it is alive."""
        return self.outputs, self.reports

    @property
    def location(self) -> Location:
        """The location of the process."""
        host = self.told.host_id if self.told is not None else ""
        place = self.endpoint
        return Location(host, place.uid, place.node, place.zone)

    def moved(self, endpoint: Endpoint) -> None:
        """Apply a new report of discovery."""
        self.endpoint = endpoint
        self._tell()

    def leave(self) -> None:
        """Discovery knows it no more."""
        self.gone = True
        self._tell()

    def segment_began(self) -> None:
        """This gateway has asked it for a slot."""
        self.segments += 1

    def segment_ended(self) -> None:
        """A segment has given its slot back."""
        self.segments -= 1
        if not self.placed:
            self._tell()

    def hold(self, lost: Lost) -> None:
        """Call `lost` if the stage stops answering, until `let_go`."""
        self._holders.add(lost)

    def let_go(self, lost: Lost) -> None:
        """The end of `hold`; may be repeated."""
        self._holders.discard(lost)

    def _tell(self) -> None:
        """A mistake in what follows of a change is no reason to watch it no more."""
        try:
            self._changed(self)
            if self.leaving:
                for told in tuple(self.on_leaving):
                    told()
        except Exception:
            log.exception("what follows of a change of the stage %s failed", self.role)

    def open_anew(self) -> None:
        """Give up the connection; what still runs on it may end."""
        closing = asyncio.create_task(self.channel.close(CLOSING_S))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        for made_with_it in ("channel", "stub"):
            self.__dict__.pop(made_with_it, None)

    def misread(self, channel: grpc.aio.Channel, failure: grpc.aio.AioRpcError) -> None:
        """Close the connection of a call that failed because its headers were not understood.

        A byte of the method's name, or of a header's, may have been corrupted on the way. HTTP/2
        caches headers for the lifetime of a connection, so that every later call would also fail.
        """
        unknown = failure.code() is grpc.StatusCode.UNIMPLEMENTED
        # gRPC's own words for a header that cannot be one.
        illegal = "Illegal header" in (failure.details() or "")
        # Another call may have given it up already.
        if (unknown or illegal) and not is_typed(failure) and channel is self.channel:
            log.warning(
                "stage %s at %s: a call was misread (%s): connecting again",
                self.role,
                self.address,
                failure.details(),
            )
            self.open_anew()

    async def close(self) -> None:
        """Close all channels; nothing may run on them."""
        await asyncio.gather(self.channel.close(), *self._closing)

    def take_load(self, load: stage_pb2.StageLoad | None) -> None:
        """Apply a report of the load, or note that there are no reports."""
        drained, busy = self.draining, self.busy
        self.reported = load
        if load is not None:
            self.reports += 1
            self.reported_at = time.monotonic()
        if drained != self.draining or busy != self.busy:
            self._tell()

    def rise(self, description: stage_pb2.DescribeResponse) -> None:
        """It serves, and has described itself: logged where it did not before, or is another
        process."""
        if not self.ready or self.boot_id != description.boot_id:
            log.info("stage %s at %s is ready", self.role, self.address)
        self.description = self.told = description
        self.reason = ""
        self._tell()

    def fall(self, reason: str, *, may_be_starting: bool = False) -> None:
        """It does not serve: a fault in the log, unless it may be starting and has never served."""
        if reason != self.reason:
            if may_be_starting and self.told is None:
                log.info("stage %s at %s is not ready yet: %s", self.role, self.address, reason)
            else:
                log.warning("stage %s at %s is down: %s", self.role, self.address, reason)
        self.description, self.reason = None, reason
        self._tell()

    def lose(self, why: str) -> None:
        """End what runs there."""
        for lost in list(self._holders):
            lost(
                Unavailable(
                    f"the stage {self.role} at {self.address} was lost: {why}", stage=self.role
                )
            )


def _channel_options(reconnect_s: float) -> list[tuple[str, int]]:
    """The common options, with the deployment's pause between attempts to connect."""
    options = dict(CHANNEL_OPTIONS)
    options["grpc.keepalive_time_ms"] = WATCHED_KEEPALIVE_MS
    # Without probes of the bandwidth, which answer each message, a stream has a constant window.
    options["grpc.http2.bdp_probe"] = 0
    options["grpc.http2.lookahead_bytes"] = STREAM_WINDOW_BYTES
    options["grpc.max_reconnect_backoff_ms"] = max(100, round(reconnect_s * 1000))
    return list(options.items())
