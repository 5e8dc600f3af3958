"""Implements KEDA's external scaler. The names and field numbers match those of KEDA's own
definitions.

KEDA sends a ScaledObject whose trigger contains the name of a stage (`metadata.stage`). The metric
is the demand for this stage in slots, and the target is the number of slots that should be in use
on each replica. To get the desired number of replicas, KEDA divides the metric by the target.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from antiphon.errors import AntiphonError, InvalidArgument, NotFound, Unavailable
from antiphon.v1 import external_scaler_pb2 as messages
from antiphon_gateway.changes import ChangeSignal

SERVICE = "externalscaler.ExternalScaler"
STAGE, TARGET = "stage", "target"
"""Keys in the metadata of a trigger."""

Request = TypeVar("Request", bound=Message)
Context = grpc.aio.ServicerContext[Any, Any]


class DemandView(Protocol):
    """The demand to report. `changes` is notified whenever the demand may have changed."""

    @property
    def changes(self) -> ChangeSignal:
        """Notifies about changes in the demand for any stage."""
        ...

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of all stages."""
        ...

    def demand(self, role: str) -> float:
        """Return the number of slots that all gateways together need on a stage, as far as this is
        known.
        """
        ...

    def known_demand(self, role: str) -> float:
        """Like `demand`, but raises `Unavailable` if the actual demand may be higher."""
        ...

    def target(self, role: str, share: float | None) -> float:
        """Return how many slots should be in use on each replica. `share` is the share given in the
        trigger. If it is None, the configured share is used.
        """
        ...


class ExternalScaler:
    """Implements the service's four methods.

    If a trigger is invalid, the status is INVALID_ARGUMENT or NOT_FOUND, and the message contains
    the key. If the actual demand may be higher than what is known, the status is UNAVAILABLE. After
    an error, KEDA keeps the number of replicas, whereas reporting too little demand would end
    replicas that are in use.
    """

    def __init__(self, view: DemandView) -> None:
        self._view = view

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service under KEDA's name."""
        asked = messages.ScaledObject
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "IsActive": _unary(self._is_active, asked),
            "StreamIsActive": grpc.unary_stream_rpc_method_handler(
                self._stream_is_active, asked.FromString, _serialised
            ),
            "GetMetricSpec": _unary(self._get_metric_spec, asked),
            "GetMetrics": _unary(self._get_metrics, messages.ScalingValuesRequest),
        }
        generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
        server.add_generic_rpc_handlers((generic,))

    async def _is_active(self, scaled: messages.ScaledObject) -> messages.ScaledObjectActivity:
        active = self._view.known_demand(self._stage_of(scaled)) > 0
        return messages.ScaledObjectActivity(active=active)

    async def _stream_is_active(
        self, scaled: messages.ScaledObject, context: Context
    ) -> AsyncIterator[messages.ScaledObjectActivity]:
        """Yield whether there is any demand, first immediately and then whenever it changes. This
        never ends.
        """
        try:
            role = self._stage_of(scaled)
        except (InvalidArgument, NotFound) as error:
            await _abort(context, error)
        told: bool | None = None
        while True:
            changed = self._view.changes.next
            if (active := self._view.demand(role) > 0) != told:
                told = active
                yield messages.ScaledObjectActivity(active=active)
            await changed.wait()

    async def _get_metric_spec(self, scaled: messages.ScaledObject) -> messages.ScalingTargets:
        role = self._stage_of(scaled)
        target = self._view.target(role, _share_of(scaled))
        told = messages.ScalingTarget(
            metric=_metric(role), whole_value=math.ceil(target), value=target
        )
        return messages.ScalingTargets(targets=[told])

    async def _get_metrics(self, request: messages.ScalingValuesRequest) -> messages.ScalingValues:
        role = self._stage_of(request.object)
        metric = _metric(role)
        if request.metric not in ("", metric):
            raise NotFound(
                f"metricName: the metric of the stage {role} is {metric}, not {request.metric!r}",
                field="metricName",
            )
        demand = self._view.known_demand(role)
        told = messages.ScalingValue(metric=metric, whole_value=math.ceil(demand), value=demand)
        return messages.ScalingValues(values=[told])

    def _stage_of(self, scaled: messages.ScaledObject) -> str:
        """Return the name of the stage in the trigger."""
        role, roles = scaled.metadata.get(STAGE, ""), ", ".join(self._view.roles)
        if not role:
            raise InvalidArgument(
                f"metadata.{STAGE}: is required; use one of: {roles}",
                field=f"metadata.{STAGE}",
            )
        if role not in self._view.roles:
            raise NotFound(
                f"metadata.{STAGE}: unknown stage {role!r}; use one of: {roles}",
                field=f"metadata.{STAGE}",
            )
        return role


def _share_of(scaled: messages.ScaledObject) -> float | None:
    """Return the share of used slots that the trigger requests, or None if it doesn't
    contain one.
    """
    given = scaled.metadata.get(TARGET, "")
    if not given:
        return None
    try:
        share = float(given)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise InvalidArgument(
            f"metadata.{TARGET}: the target slot usage must be above 0 and at most 1, got "
            f"{given!r}",
            field=f"metadata.{TARGET}",
        )
    return share


def _metric(role: str) -> str:
    return f"antiphon-{role}-slots"


def _unary(
    answer: Callable[[Request], Awaitable[Message]], asked: type[Request]
) -> grpc.RpcMethodHandler[Request, Message]:
    """Return a handler for a unary call. Errors are converted to a gRPC status."""

    async def handle(request: Request, context: Context) -> Message:
        try:
            return await answer(request)
        except (InvalidArgument, NotFound, Unavailable) as error:
            await _abort(context, error)
            raise

    return grpc.unary_unary_rpc_method_handler(handle, asked.FromString, _serialised)


async def _abort(context: Context, error: AntiphonError) -> None:
    """End the call with this error. Always raises an exception."""
    await context.abort(grpc.StatusCode[error.code.name], error.message)


def _serialised(message: Message) -> bytes:
    return message.SerializeToString()
