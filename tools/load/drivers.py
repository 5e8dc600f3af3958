"""The driver that an order asks for, connected to what it loads."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from typing import Protocol

import msgspec

from antiphon.errors import DataLoss, FailedPrecondition, Internal, NotFound, Unavailable
from antiphon.pipelines.graph import Pipeline
from antiphon.pipelines.registry import pipeline_named
from antiphon.v1 import stage_pb2
from tools.launcher.plan import GATEWAY
from tools.load.content import AUDIO, TEXT
from tools.load.gateway_driver import GrpcDriver, HttpDriver
from tools.load.http_stream import HttpAddress, get
from tools.load.kind import check_gateway, describe_role
from tools.load.options import Options
from tools.load.recording import feeds_of
from tools.load.run import Driver
from tools.load.stage_driver import StageDriver, describe_stage
from tools.load.target import Target
from tools.load.upstream import FeedOf, made_up

DEFAULT_SAMPLE_RATE_HZ = 24_000
"""Of an HTTP gateway whose stages cannot be asked."""


class ServiceDriver(Driver, Protocol):
    """A driver that knows which outputs its requests get, of text and audio."""

    @property
    def outputs(self) -> Collection[str]:
        """Their names."""
        ...


@contextlib.asynccontextmanager
async def connected(options: Options, target: Target) -> AsyncIterator[ServiceDriver]:
    """The driver for the order's service.

    Raises `FailedPrecondition` when the service at the target is another one, and
    what describing it raises.
    """
    if options.service != GATEWAY:
        async with await _stage_driver(options, target) as stage:
            yield stage
    elif options.door == "grpc":
        content, timeout_s = options.content, options.timeout_s
        await check_gateway(target.grpc_address)
        async with GrpcDriver(target.grpc_address, content, timeout_s=timeout_s) as grpc:
            yield grpc
    else:
        yield await _http_driver(options, target)


async def _http_driver(options: Options, target: Target) -> HttpDriver:
    address = HttpAddress.parse(target.http_url)
    model = await _first_model(address)
    content = options.content
    if not content.voice and model.voices:
        content = replace(content, voice=model.voices[0])
    if not content.outputs:
        content = replace(content, outputs=(TEXT, AUDIO))
    described = [await describe_stage(each) for each in target.stages.values()]
    rate_hz = max((each.sample_rate_hz for each in described), default=0)
    return HttpDriver(
        address,
        model.id,
        content,
        sample_rate_hz=rate_hz or DEFAULT_SAMPLE_RATE_HZ,
        timeout_s=options.timeout_s,
    )


class _Model(msgspec.Struct, frozen=True):
    id: str
    voices: tuple[str, ...] = ()


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...]


async def _first_model(address: HttpAddress) -> _Model:
    try:
        models = msgspec.json.decode(await get(address, "/v1/models"), type=_Models)
    except (OSError, EOFError) as error:
        raise Unavailable(f"{address}: {error}") from error
    except (NotFound, DataLoss, Internal) as error:
        raise FailedPrecondition(
            f"{address} does not list models as a {GATEWAY} does: {error.message}"
        ) from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise FailedPrecondition(f"{address}: lists no models: {error}") from error
    if not models.data:
        raise FailedPrecondition(f"{address}: serves no model")
    return models.data[0]


async def _stage_driver(options: Options, target: Target) -> StageDriver:
    description = await describe_role(target.grpc_address, options.service)
    pipeline = pipeline_named(description.pipeline)
    return StageDriver(
        target.grpc_address,
        pipeline,
        description,
        options.content,
        _feed_of(options, pipeline, description),
        paced=options.pace.real_time,
        timeout_s=options.timeout_s,
    )


def _feed_of(
    options: Options, pipeline: Pipeline, description: stage_pb2.DescribeResponse
) -> FeedOf:
    """What the stage is fed: a recording's sessions in turn, or what is made up."""
    if options.replay is None:
        return made_up(options.content, pipeline, description, options.pace, options.model_dir)
    feeds = feeds_of(options.replay, [edge.name for edge in description.inputs])
    return lambda number: feeds[number % len(feeds)]
