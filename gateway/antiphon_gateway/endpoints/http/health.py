"""The `/health` endpoint."""

from __future__ import annotations

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon.errors import InvalidArgument, Unauthenticated
from antiphon_gateway.calls.calls import Calls
from antiphon_gateway.endpoints.http.authorization import credentials_of
from antiphon_gateway.endpoints.http.json_response import json_response
from antiphon_gateway.fleet.health_report import health_report
from antiphon_gateway.keys.identities import Identities


def health_route(calls: Calls, identities: Identities) -> Route:
    """Return a route that reports whether the gateway can serve requests. If there are any API
    keys, one of them is required to see details about the stages.
    """

    async def knows_a_key(asked: Request) -> bool:
        try:
            await identities.identify(credentials_of(asked.scope), counted=False)
        except (Unauthenticated, InvalidArgument):
            return False
        return True

    async def health(asked: Request) -> Response:
        report = health_report(calls.fleet, detailed=await knows_a_key(asked))
        if calls.closing:
            nothing = dict.fromkeys(report.outputs, False)
            reason = "the gateway is shutting down"
            report = replace(report, ready=False, reason=reason, outputs=nothing)
        # With ?output=text, the status depends only on this output.
        output = asked.query_params.get("output", "")
        if output and output not in report.outputs:
            reason = (
                f"output: {output!r} is not an output of the model; use one of: "
                f"{', '.join(report.outputs)}"
            )
            report = replace(report, ready=False, reason=reason)
        ready = report.outputs.get(output, False) if output else report.ready
        return json_response(report, 200 if ready else 503)

    return Route("/health", health)
