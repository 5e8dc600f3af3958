"""The parts of a request that all endpoints share: an ID, a line in the access log, and exactly one
end.

An endpoint only determines how events and errors are sent to its client. If the client disconnects,
the task of the request is cancelled, which frees all stages. The line is still written to the log.
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
    """Process one request. An error that leaves the context is passed to `refuse` and is not raised
    any further.

    The ID is the one that the client has sent, if any. The key may be determined within the
    context.
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
    """Send every event to the client. An error that occurs after the first event is also sent to
    the client.

    An error before the first event is raised.
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
        # This is done before the client receives the error, because the client may cancel the call
        # as soon as it does.
        entry.fail(error)
        await tell_error(entry, error)
