"""The steps that all endpoints share: each request has an ID, a line in the access log, and exactly
one end.

An endpoint only decides how to send events and errors to its client. If the client disconnects, the
request's task is cancelled, which releases all stages. The request is still logged.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from antiphon.errors import AntiphonError, Internal
from antiphon_gateway.calls.choices import OfChoice
from antiphon_gateway.endpoints.access_log import AccessLog, RequestLog
from antiphon_gateway.endpoints.sending import ClientStalled
from antiphon_gateway.keys.key_use import KeyUse
from antiphon_gateway.sessions.events import Event

log = logging.getLogger("gateway.endpoints")

Told = TypeVar("Told", Event, Event | OfChoice)
Refuse = Callable[[RequestLog, AntiphonError], Awaitable[None]]


@asynccontextmanager
async def request(
    access_log: AccessLog,
    api: str,
    name: str,
    refuse: Refuse,
    given_id: str = "",
    key: KeyUse | None = None,
) -> AsyncIterator[RequestLog]:
    """Handle one request inside the context. An error that is raised there is passed to `refuse`,
    and goes no further.

    If the client has sent an ID, it is used. The API key may be determined inside the context.
    """
    request_id = given_id or f"req_{uuid.uuid4().hex}"
    with access_log.entry(api, name, request_id, key or KeyUse()) as entry:
        try:
            yield entry
        except AntiphonError as error:
            entry.fail(error)
            await refuse(entry, error)
        except Exception:
            log.exception("request %s broke", entry.request_id)
            mistake = Internal("the gateway made a mistake; its log has more")
            entry.fail(mistake)
            await refuse(entry, mistake)


async def tell(
    events: AsyncIterator[Told],
    entry: RequestLog,
    tell_event: Callable[[Told], Awaitable[None]],
    tell_error: Refuse,
) -> None:
    """Send all events to the client, and also an error that occurs after the first event.

    An error that occurs before the first event is raised instead.
    """
    try:
        async for event in events:
            entry.note(event)
            await tell_event(event)
    except ClientStalled:
        raise
    except AntiphonError as error:
        if not entry.session_id:
            raise
        # Do this before sending the error, because the client may cancel the call as soon as it
        # receives it.
        entry.fail(error)
        await tell_error(entry, error)
