"""Who may ask a stage for what, by the names in certificates."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from antiphon.errors import Unauthenticated
from antiphon.pipelines.graph import CLIENT, Pipeline
from antiphon.transport.mutual_tls import GATEWAY, ServiceTls
from antiphon.wire.status import abort


@dataclass(frozen=True, slots=True)
class Callers:
    """Sessions are the gateway's, chunks come from the stages before this one. Without TLS nobody
    is asked who they are."""

    tls: ServiceTls | None = None
    producers: Collection[str] = ()

    async def check_session(self, context: Any) -> None:
        """End the call of who may not open sessions, nor ask about them."""
        await self._check(context, {GATEWAY})

    async def check_link(self, context: Any) -> None:
        """End the call of who may not send chunks."""
        await self._check(context, self.producers)

    async def _check(self, context: Any, roles: Collection[str]) -> None:
        if self.tls is None:
            return
        try:
            self.tls.check(context, roles)
        except Unauthenticated as error:
            await abort(context, error)


def callers_of(tls: ServiceTls | None, pipeline: Pipeline, role: str) -> Callers:
    """Those of a stage."""
    producers = {edge.producer for edge in pipeline.inputs(role) if edge.producer != CLIENT}
    return Callers(tls, producers)
