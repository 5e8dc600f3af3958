"""The gateway's Prometheus metrics, which are kept in a separate registry."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

PREFIX = "antiphon_gateway_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0, 3.0, 5.0, 10.0, 30.0)
_RATIOS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2.0, 5.0, 20.0)


class Refused(enum.StrEnum):
    """The endpoint and file fetching limits that a client can run into."""

    CONNECTIONS = "max_connections"
    IDLE_CONNECTION = "idle_connection"
    HEAD_BYTES = "max_head_bytes"
    HEAD_TIME = "head_timeout_s"
    PIPELINED = "pipelined"
    BODY_BYTES = "max_body_bytes"
    BODY_VALUES = "max_body_values"
    BODY_TIME = "body_timeout_s"
    UPLOADS = "memory_uploads"
    UNREAD = "memory_unread"
    SEND_TIME = "send_timeout_s"
    HOST = "host_names"
    GRPC_CONNECTIONS = "max_grpc_connections"
    GRPC_ADDRESS = "max_grpc_connections_per_address"
    GRPC_FRAMES = "grpc_frames"


class Metrics:
    """The gateway's metrics. The label `api` is "http", "grpc" or "realtime"."""

    def __init__(self, *, in_flight: Callable[[], float]) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests by outcome", ("api", "status"))
        self.errors = self._counter("errors", "Errors returned to clients", ("code", "stage"))
        self.ignored_fields = self._counter(
            "ignored_fields",
            "Request fields ignored because neither OpenAI nor vLLM defines them",
            ("path",),
        )
        self.audio_seconds = self._counter(
            "audio_seconds", "Duration of sent audio in seconds", ("api",)
        )
        self.ttft = self._histogram(
            "ttft_seconds", "Time from the request to the first text", _SECONDS
        )
        self.ttfa = self._histogram(
            "ttfa_seconds", "Time from the request to the first audio", _SECONDS
        )
        self.images = self._counter("images", "Generated images sent", ("api",))
        self.ttfi = self._histogram(
            "ttfi_seconds", "Time from the request to the first image", _SECONDS
        )
        self.rtf = self._histogram(
            "rtf_ratio", "Request duration divided by the duration of its audio", _RATIOS
        )
        self.turns = self._counter("turns", "User turns that were spoken", ("api",))
        self.responses = self._counter(
            "responses", "Responses in conversations by final status", ("api", "status")
        )
        self.conversation_refusals = self._counter(
            "conversation_refusals", "Rejected conversation commands", ("api", "code")
        )
        self.turn_ttfa = self._histogram(
            "turn_ttfa_seconds",
            "Time from the end of a spoken turn to the first audio of the answer",
            _SECONDS,
        )
        self._refused = self._counter(
            "refused",
            "Rejected requests and closed connections because of a limit of the HTTP or gRPC "
            "endpoint",
            ("bound",),
        )
        for bound in Refused:
            self._refused.labels(bound.value)
        self._not_admitted = self._counter(
            "not_admitted",
            "Requests rejected because no slot was available, or because their API key reached "
            "a limit",
            ("reason",),
        )
        self._unshared_key_use = self._counter(
            "unshared_key_use",
            "How often the use of an API key was checked or recorded without the other gateways, "
            "because one of them had locked the shared database",
            (),
        )
        self._admissions = self._counter(
            "admissions", "Requests by queue decision", ("priority", "outcome")
        )
        self._wait = Histogram(
            f"{PREFIX}wait_seconds",
            "Time until a request has the slots of all its stages",
            ("urgency",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._failovers = self._counter(
            "failovers",
            "Answer failovers by lost stage",
            ("stage", "outcome"),
        )
        self._failover_s = Histogram(
            f"{PREFIX}failover_seconds",
            "Time from the loss of a stage until the answer has slots on the new replicas",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._suspensions = self._counter(
            "stream_suspensions",
            "Streams to stages whose call broke while sessions were open",
            ("stage", "outcome"),
        )
        self.watch("in_flight", "Requests in progress", in_flight)

    def refuse(self, bound: Refused) -> None:
        """Count that a client ran into a limit."""
        self._refused.labels(bound.value).inc()

    def not_admitted(self, reason: str) -> None:
        """Count a request that was rejected, either by the queue or because of a limit on its API
        key.
        """
        self._not_admitted.labels(reason).inc()

    def unshared_key_use(self) -> None:
        """Count that the use of a key was checked or recorded without the other gateways."""
        self._unshared_key_use.inc()

    def admission(self, priority: str, outcome: str) -> None:
        """Count a decision of the queue. The outcome is `admitted` or the reason for the
        rejection.
        """
        self._admissions.labels(priority, outcome).inc()

    def waited(self, urgency: str, seconds: float) -> None:
        """Record how long a request waited for its slots."""
        self._wait.labels(urgency).observe(seconds)

    def failed_over(self, stage: str, outcome: str, seconds: float | None = None) -> None:
        """Count a failover. The outcome is `continued` (with the time it took in seconds),
        `failed`, or `refused` if the maximum number of failovers was reached.
        """
        self._failovers.labels(stage, outcome).inc()
        if seconds is not None:
            self._failover_s.observe(seconds)

    def suspended(self, stage: str, outcome: str) -> None:
        """Count a stream that was suspended. The outcome is `resumed` or `lost`."""
        self._suspensions.labels(stage, outcome).inc()

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Export a gauge whose value is computed on each scrape."""
        Gauge(f"{PREFIX}{name}", text, registry=self.registry).set_function(value)

    def watch_each(
        self, name: str, text: str, label: str, values: Mapping[str, Callable[[], float]]
    ) -> None:
        """Export a gauge with one label. Its values are computed on each scrape."""
        gauge = Gauge(f"{PREFIX}{name}", text, (label,), registry=self.registry)
        for each, value in values.items():
            gauge.labels(each).set_function(value)

    def expose(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"{PREFIX}{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"{PREFIX}{name}", text, ("api",), buckets=buckets, registry=self.registry)
