"""Creates the driver for a load test and connects it to the service."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection
from typing import Protocol

from antiphon.errors import InvalidArgument
from antiphon.pipelines.graph import Pipeline
from antiphon.pipelines.registry import pipeline_named
from antiphon.v1 import stage_pb2
from antiphon_tools.launcher.plan import GATEWAY
from antiphon_tools.load.gateway_driver import GrpcDriver, HttpDriver
from antiphon_tools.load.http_stream import HttpAddress
from antiphon_tools.load.kind import describe_role
from antiphon_tools.load.options import LoadOptions
from antiphon_tools.load.recording import feeds_of
from antiphon_tools.load.run import Driver
from antiphon_tools.load.served import told_over_grpc, told_over_http
from antiphon_tools.load.stage_driver import StageDriver
from antiphon_tools.load.target import Target
from antiphon_tools.load.trust import Trust
from antiphon_tools.load.upstream import FeedOf, made_up


class ServiceDriver(Driver, Protocol):
    """A driver that can also list the outputs of its requests."""

    @property
    def outputs(self) -> Collection[str]:
        """The names of the outputs, such as text and audio."""
        ...


@contextlib.asynccontextmanager
async def connected(options: LoadOptions, target: Target) -> AsyncIterator[ServiceDriver]:
    """Return the driver for the service under test.

    Raises `FailedPrecondition` if a different service is running at the target, and
    `InvalidArgument` if the stage doesn't support one of the options. Errors that occur while the
    service is described are passed on.
    """
    if options.service != GATEWAY:
        async with contextlib.aclosing(await _stage_driver(options, target)) as stage:
            yield stage
        return
    content, timeout_s = options.content, options.timeout_s
    if options.endpoint == "grpc":
        trust, key = options.trust, options.api_key
        model = await told_over_grpc(target.grpc_address, trust, key)
        grpc = GrpcDriver(
            target.grpc_address, model, content, timeout_s=timeout_s, trust=trust, api_key=key
        )
        async with contextlib.aclosing(grpc):
            yield grpc
    else:
        address = HttpAddress.parse(target.http_url, options.trust or Trust(), options.api_key)
        model = await told_over_http(address)
        yield HttpDriver(address, model, content, timeout_s=timeout_s)


async def _stage_driver(options: LoadOptions, target: Target) -> StageDriver:
    description = await describe_role(target.grpc_address, options.service, options.stage_trust)
    pipeline = pipeline_named(description.pipeline)
    known = {option.name for option in pipeline.stage(description.role).options}
    if unknown := sorted(options.content.options.keys() - known):
        raise InvalidArgument(
            f"--option {unknown[0]}: {description.role} has no such option; its options are "
            f"{', '.join(sorted(known)) or 'none'}",
            field=unknown[0],
        )
    return StageDriver(
        target.grpc_address,
        pipeline,
        description,
        options.content,
        _feed_of(options, pipeline, description),
        paced=options.pace.real_time,
        timeout_s=options.timeout_s,
        trust=options.stage_trust,
    )


def _feed_of(
    options: LoadOptions, pipeline: Pipeline, description: stage_pb2.DescribeResponse
) -> FeedOf:
    """Return the input of the stage, which is either recorded or generated.

    The sessions of a recording are used in turn.
    """
    if options.replay is None:
        return made_up(options.content, pipeline, description, options.pace, options.model_dir)
    feeds = feeds_of(options.replay, [edge.name for edge in description.inputs])
    return lambda number: feeds[number % len(feeds)]
