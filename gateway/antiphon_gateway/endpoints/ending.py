"""Code that all endpoints share. Each request has an ID, a line in the access log, and exactly one
outcome.

An endpoint only has to send events and errors to its client. If the client disconnects, the
request's task is cancelled, which releases all stages. The request is logged in any case.
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
    """Handle one request for the duration of the context. If an error is raised inside the context,
    it is passed to `refuse` and doesn't propagate any further.

    If the client has sent an ID, that ID is used. The API key can be determined inside the context.
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
            mistake = Internal("internal error; see the gateway's log")
            entry.fail(mistake)
            await refuse(entry, mistake)


async def tell(
    events: AsyncIterator[Told],
    entry: RequestLog,
    tell_event: Callable[[Told], Awaitable[None]],
    tell_error: Refuse,
) -> None:
    """Send all events to the client. An error that occurs after the first event is sent as well.

    If an error occurs before the first event, it is raised instead.
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
        # Do this before sending the error, because as soon as the client receives it, it may cancel
        # the call.
        entry.fail(error)
        await tell_error(entry, error)
