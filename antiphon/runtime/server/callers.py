"""Decides which callers may use a stage, based on the names in their certificates."""

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
    """Authorizes callers. The gateway may open sessions, and upstream stages may send chunks.
    Without TLS, anyone may do both.
    """

    tls: ServiceTls | None = None
    producers: Collection[str] = ()

    async def check_session(self, context: Any) -> None:
        """Abort the call if the caller isn't allowed to open or inspect sessions."""
        await self._check(context, {GATEWAY})

    async def check_link(self, context: Any) -> None:
        """Abort the call if the caller isn't allowed to send chunks."""
        await self._check(context, self.producers)

    async def _check(self, context: Any, roles: Collection[str]) -> None:
        if self.tls is None:
            return
        try:
            self.tls.check(context, roles)
        except Unauthenticated as error:
            await abort(context, error)


def callers_of(tls: ServiceTls | None, pipeline: Pipeline, role: str) -> Callers:
    """Return the callers that are authorized to use a stage with this role."""
    producers = {edge.producer for edge in pipeline.inputs(role) if edge.producer != CLIENT}
    return Callers(tls, producers)
