"""Every series that a gateway or a stage may tell, with what it is and its labels."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from antiphon.deployment.schema import Deployment, StageConfig
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.server.description import StageIdentity
from antiphon.runtime.server.metrics import StageMetrics
from antiphon.transport.link_metrics import LinkMetrics
from antiphon.transport.settings import LinkState
from antiphon_gateway.server import Gateway
from antiphon_testkit.gateway_settings import gateway_config
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from antiphon_testkit.stage_harness import LIMITS

ROLE = "code2wav"
HERE = "127.0.0.1:0"
_ENDINGS = {"counter": ("_total",), "info": ("_info",), "histogram": ("_bucket", "_sum", "_count")}


class Series(NamedTuple):
    """What a series is: gauge, counter, histogram or info; without a histogram's `le`."""

    kind: str
    labels: frozenset[str]

    def samples(self, name: str) -> Iterator[tuple[str, frozenset[str]]]:
        """The names of its samples, with their labels."""
        if self.kind != "histogram":
            yield name, self.labels
            return
        for ending in _ENDINGS[self.kind]:
            yield name + ending, self.labels | ({"le"} if ending == "_bucket" else set())


async def all_series() -> dict[str, Series]:
    """By name, as expressions have it: that of a counter ends in `_total`."""
    stages = {role: StageConfig(addresses=("127.0.0.1:1",)) for role in PIPELINE.roles}
    config = gateway_config(http_listen=HERE, grpc_listen=HERE, scaler_listen=HERE, drain_s=0.1)
    async with Gateway(Deployment(stages=stages, gateway=config)) as gateway:
        told = dict(_of_registry(gateway.metrics.registry._collector_to_names))
    link = LinkState(True, transport="grpc", refused=("nccl: no",), counts=Counter())
    async with running_stage(LoadedStage(FakeEngine(), FACTS), ROLE) as running:
        stage = StageMetrics(ROLE, "cpu", lambda: True)
        stage.serve(running.stage, StageIdentity(PIPELINE, ROLE, FACTS, LIMITS.slots))
        families = await asyncio.to_thread(stage.collect)
    families += LinkMetrics(ROLE, lambda: [link]).families()
    return told | dict(_named(families))


def _of_registry(collectors: Iterable[Collector]) -> Iterator[tuple[str, Series]]:
    """Also series of which there is no sample yet."""
    for each in collectors:
        if isinstance(each, MetricWrapperBase):
            (family,) = each.describe()
            yield _name(family), Series(family.type, frozenset(each._labelnames))
        else:
            yield from _named(each.collect())


def _named(families: Iterable[Metric]) -> Iterator[tuple[str, Series]]:
    for family in families:
        labels = {name for sample in family.samples for name in sample.labels}
        labels |= set(getattr(family, "_labelnames", ()))
        yield _name(family), Series(family.type, frozenset(labels - {"le"}))


def _name(family: Metric) -> str:
    return family.name + (_ENDINGS[family.type][0] if family.type in ("counter", "info") else "")
