"""Writes a log line and metrics for each request. The content of requests is never logged."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import msgspec

from antiphon.errors import AntiphonError
from antiphon.tracing.span import (
    NO_SPAN,
    Attribute,
    current_span,
    enclosing_span,
    given_traceparent,
)
from antiphon.tracing.tracing import Tracing
from antiphon_gateway.admission.priority import lower
from antiphon_gateway.calls.choices import OfChoice
from antiphon_gateway.keys.key_use import KeyUse
from antiphon_gateway.metrics import Metrics
from antiphon_gateway.orders.order import Order
from antiphon_gateway.sessions.events import (
    AudioProduced,
    Event,
    ImageProduced,
    SegmentFinished,
    SegmentStarted,
    SegmentUsage,
    TextProduced,
)

log = logging.getLogger("gateway.requests")


class RequestLog:
    """The log entry of a request in progress. All times are on the access log's clock.

    `request_id` may have been chosen by the client, so it isn't necessarily unique, whereas
    `answer_id` is. `routine` requests are logged at the DEBUG level, and all others at the INFO
    level.
    """

    def __init__(
        self, api: str, name: str, request_id: str, key: KeyUse, clock: Callable[[], float]
    ) -> None:
        self.key = key
        self.api = api
        self.name = name
        self.request_id = request_id
        self.answer_id = uuid.uuid4().hex
        self.status = ""
        self.routine = False
        self.error: AntiphonError | None = None
        self.session_id = ""
        self.ignored_fields: Collection[str] = ()
        self.usage: SegmentUsage | None = None
        self.audio_s = 0.0
        self.first_text_s = self.first_audio_s = self.first_image_s = 0.0
        self.images = 0
        self._sample_rate_hz = 0
        self._clock = clock
        self._start = clock()

    @property
    def elapsed_s(self) -> float:
        """How many seconds have passed since the request arrived."""
        return self._clock() - self._start

    def note(self, event: Event | OfChoice) -> None:
        """Record an event that is sent to the client."""
        match event:
            case OfChoice():
                self.note(event.event)
            case SegmentStarted():
                self.session_id = self.session_id or event.session_id
                self._sample_rate_hz = event.sample_rate_hz
            case TextProduced():
                self.first_text_s = self.first_text_s or self.elapsed_s
            case AudioProduced():
                if len(event.samples):
                    self.first_audio_s = self.first_audio_s or self.elapsed_s
                    seconds = len(event.samples) / self._sample_rate_hz
                    self.audio_s += seconds
                    self.key.add_audio(seconds)
            case ImageProduced():
                self.first_image_s = self.first_image_s or self.elapsed_s
                self.images += len(event.images)
            case SegmentFinished():
                self.usage = self.usage.with_choice(event.usage) if self.usage else event.usage

    def admitted(self) -> AbstractContextManager[None]:
        """Return a context manager during which the request counts towards its API key's limits.

        Raises `KeyLimitReached` if a limit has been reached.
        """
        return self.key.request()

    def for_key(self, order: Order) -> Order:
        """Return the order with this request's API key filled in."""
        priority = lower(order.priority, self.key.limits.priority)
        return replace(order, key=self.key.name, priority=priority)

    def counted(self) -> None:
        """Count the request towards its key's requests per minute but not towards its concurrent
        requests.

        Raises `KeyLimitReached` if the limit has been reached.
        """
        self.key.count()

    def fail(self, error: AntiphonError) -> None:
        """Record the error that ended the request. Only the first error counts."""
        _forget_frames(error)
        self.error = self.error or error


def _forget_frames(error: BaseException | None) -> None:
    """Release the frames in an error's traceback, together with everything that they refer to.

    Some of these frames refer back to the error, for example through the log entry, the session or
    a variable. Because of this cycle, the body of a refused request would stay in memory until the
    next full garbage collection.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


class AccessLog:
    """Writes a log line and updates the metrics for every completed request. If the request is
    sampled, a trace is written, too.
    """

    def __init__(
        self, metrics: Metrics, tracing: Tracing, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._metrics = metrics
        self._tracing = tracing
        self._clock = clock

    @contextmanager
    def entry(self, api: str, name: str, request_id: str, key: KeyUse) -> Iterator[RequestLog]:
        """Return a context manager for a request's log entry. The entry is written when the context
        ends.

        Inside the context, the entry's span is the current span.
        """
        entry = RequestLog(api, name, request_id, key, self._clock)
        within, outer = enclosing_span.get(), current_span.get()
        enclosing_span.set(None)
        if within is None:
            span = self._tracing.request(name, given_traceparent.get())
        else:
            span = within.child(name)
        current_span.set(span)
        try:
            yield entry
        finally:
            current_span.set(outer)
            if span is not NO_SPAN:
                span.set(**_told(entry))
                span.end(entry.error)
            self._count(entry)
            level = logging.DEBUG if entry.routine else logging.INFO
            if log.isEnabledFor(level):
                log.log(level, "%s", msgspec.json.encode(_line(entry)).decode())

    def _count(self, entry: RequestLog) -> None:
        metrics, api = self._metrics, entry.api
        metrics.requests.labels(api, entry.status).inc()
        if entry.error is not None:
            metrics.errors.labels(entry.error.code.value, entry.error.stage).inc()
        if entry.first_text_s:
            metrics.ttft.labels(api).observe(entry.first_text_s)
        if entry.first_audio_s:
            metrics.ttfa.labels(api).observe(entry.first_audio_s)
        if entry.images:
            metrics.ttfi.labels(api).observe(entry.first_image_s)
            metrics.images.labels(api).inc(entry.images)
        if entry.audio_s:
            metrics.audio_seconds.labels(api).inc(entry.audio_s)
            if entry.usage is not None:
                metrics.rtf.labels(api).observe(entry.elapsed_s / entry.audio_s)


def _told(entry: RequestLog) -> dict[str, Attribute]:
    """Return the trace attributes of a request."""
    return {
        "api": entry.api,
        "request_id": entry.request_id,
        "session_id": entry.session_id,
        "status": entry.status,
        "first_text_s": entry.first_text_s,
        "first_audio_s": entry.first_audio_s,
        "audio_s": entry.audio_s,
    }


def _line(entry: RequestLog) -> dict[str, object]:
    """Return the log line of a request."""
    line: dict[str, object] = {
        "api": entry.api,
        "request": entry.name,
        "id": entry.request_id,
        "session": entry.session_id,
        "status": entry.status,
        "seconds": round(entry.elapsed_s, 4),
        "ttft_s": round(entry.first_text_s, 4),
        "ttfa_s": round(entry.first_audio_s, 4),
        "audio_s": round(entry.audio_s, 3),
    }
    if entry.images:
        line["ttfi_s"] = round(entry.first_image_s, 4)
        line["images"] = entry.images
    if entry.key.name:
        line["key"] = entry.key.name
    if entry.usage is not None:
        line["prompt_tokens"] = entry.usage.prompt_tokens
        line["completion_tokens"] = entry.usage.completion_tokens
        line["audio_frames"] = entry.usage.completion_audio_frames
    if entry.error is not None:
        line["error"] = entry.error.code.value
        line["stage"] = entry.error.stage
        line["field"] = entry.error.field
    return line
