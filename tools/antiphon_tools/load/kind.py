"""Checks which service is running at a gRPC address, so that the load test doesn't use the wrong
one.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.client.aio import AsyncClient
from antiphon.client.events import ModelInfo
from antiphon.errors import FailedPrecondition, NotImplementedYet, Unavailable
from antiphon.pipelines.graph import CLIENT
from antiphon.v1 import stage_pb2
from antiphon_tools.launcher.plan import GATEWAY
from antiphon_tools.load.stage_driver import describe_stage
from antiphon_tools.load.trust import Trust


async def describe_gateway(
    address: str, trust: Trust | None = None, api_key: str = ""
) -> Sequence[ModelInfo]:
    """Return the models that the gateway serves. `trust` authenticates a gateway with TLS.

    Raises `FailedPrecondition` if the address belongs to a different service, and `Unavailable` if
    there is no response.
    """
    try:
        tls = trust.over_grpc() if trust else False
        async with AsyncClient(
            address, tls=tls, api_key=api_key or None, key_in_clear=True
        ) as client:
            return (await client.server_info()).models
    except NotImplementedYet as error:
        try:
            found = f"a {(await describe_stage(address)).role}"
        except NotImplementedYet:
            found = "a different kind of service"
        raise FailedPrecondition(f"{address} is {found}, not a {GATEWAY}") from error
    except Unavailable as error:
        raise _no_service(address, error) from error


async def describe_role(
    address: str, role: str, trust: Trust | None = None
) -> stage_pb2.DescribeResponse:
    """Return the stage's description. `trust` authenticates a stage with TLS.

    Raises `FailedPrecondition` if the address does not serve this role or is not a stage, and
    `Unavailable` if there is no answer.
    """
    try:
        description = await describe_stage(address, role, trust)
    except NotImplementedYet as error:
        try:
            await describe_gateway(address)
        except FailedPrecondition:
            raise FailedPrecondition(f"{address} is a different kind of service") from error
        raise FailedPrecondition(f"{address} is a {GATEWAY}, not a {role}") from error
    except Unavailable as error:
        raise _no_service(address, error) from error
    if description.role != role:
        stages = {edge.producer for edge in description.pipeline_edges} - {CLIENT}
        raise FailedPrecondition(
            f"{address} is a {description.role}, not a {role}; "
            f"{description.pipeline} has {', '.join(sorted(stages))}"
        )
    return description


def _no_service(address: str, error: Unavailable) -> Unavailable:
    return Unavailable(f"no gRPC service responded at {address}: {error.message}")
