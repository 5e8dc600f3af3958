"""A client of KEDA's external scaler, made from KEDA's own names and numbers.

The descriptors are in a pool of their own: nothing of them comes from this repository's protos.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Field = descriptor_pb2.FieldDescriptorProto
STRING, BOOL, INT64, DOUBLE = (
    Field.TYPE_STRING,
    Field.TYPE_BOOL,
    Field.TYPE_INT64,
    Field.TYPE_DOUBLE,
)
NAMES_AND_TYPES: dict[str, dict[str, Any]] = {
    "ScaledObjectRef": {"name": STRING, "namespace": STRING, "scalerMetadata": "map"},
    "IsActiveResponse": {"result": BOOL},
    "GetMetricSpecResponse": {"metricSpecs": ["MetricSpec"]},
    "MetricSpec": {"metricName": STRING, "targetSize": INT64, "targetSizeFloat": DOUBLE},
    "GetMetricsRequest": {"scaledObjectRef": "ScaledObjectRef", "metricName": STRING},
    "GetMetricsResponse": {"metricValues": ["MetricValue"]},
    "MetricValue": {"metricName": STRING, "metricValue": INT64, "metricValueFloat": DOUBLE},
}
"""KEDA's messages; the fields of each have the numbers from 1 on. A list is repeated."""


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="externalscaler.proto", package="externalscaler", syntax="proto3"
    )
    for message, fields in NAMES_AND_TYPES.items():
        made = file.message_type.add(name=message)
        for number, (name, kind) in enumerate(fields.items(), 1):
            field = made.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL)
            if kind == "map":
                entry = made.nested_type.add(name="ScalerMetadataEntry")
                entry.options.map_entry = True
                for at, key in enumerate(("key", "value"), 1):
                    entry.field.add(
                        name=key, number=at, label=Field.LABEL_OPTIONAL, type=Field.TYPE_STRING
                    )
                kind = [f"{message}.ScalerMetadataEntry"]
            if isinstance(kind, list):
                field.label, (kind,) = Field.LABEL_REPEATED, kind
            if isinstance(kind, str):
                field.type, field.type_name = Field.TYPE_MESSAGE, f".externalscaler.{kind}"
            else:
                field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"externalscaler.{name}"))
        for name in NAMES_AND_TYPES
    }


MESSAGES = _messages()


class KedaClient:
    """Asks one gateway, with a trigger's metadata."""

    def __init__(self, address: str, **metadata: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._object = MESSAGES["ScaledObjectRef"](
            name="talker",
            namespace="speech",
            scalerMetadata={"scalerAddress": address, **metadata},
        )

    async def __aenter__(self) -> KedaClient:
        return self

    async def __aexit__(self, *unused: object) -> None:
        await self._channel.close()

    async def is_active(self) -> bool:
        answer = await self._ask("IsActive", self._object, "IsActiveResponse")
        return bool(answer.result)

    async def activity(self) -> AsyncIterator[bool]:
        call = self._channel.unary_stream(
            "/externalscaler.ExternalScaler/StreamIsActive",
            type(self._object).SerializeToString,
            MESSAGES["IsActiveResponse"].FromString,
        )
        async for answer in call(self._object):
            yield answer.result

    async def spec(self) -> Any:
        (spec,) = (
            await self._ask("GetMetricSpec", self._object, "GetMetricSpecResponse")
        ).metricSpecs
        return spec

    async def value(self, metric: str | None = None) -> Any:
        name = (await self.spec()).metricName if metric is None else metric
        request = MESSAGES["GetMetricsRequest"](scaledObjectRef=self._object, metricName=name)
        (value,) = (await self._ask("GetMetrics", request, "GetMetricsResponse")).metricValues
        return value

    async def _ask(self, method: str, request: Any, answer: str) -> Any:
        call = self._channel.unary_unary(
            f"/externalscaler.ExternalScaler/{method}",
            type(request).SerializeToString,
            MESSAGES[answer].FromString,
        )
        return await call(request)
