"""Tracks how a key is used and enforces its limits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from antiphon.errors import ResourceExhausted
from antiphon_gateway.admission.role_slots import RoleSlots
from antiphon_gateway.keys.key_file import KeyLimits
from antiphon_gateway.keys.minute import LastMinute
from antiphon_gateway.keys.shared_use import SharedMinute, SharedUse

SHORTEST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0
NO_LIMITS = KeyLimits()


class KeyLimitReached(ResourceExhausted):
    """Raised if a key has reached one of its limits. `limit` is the name of the setting in the key
    file.
    """

    def __init__(self, limit: str, message: str, retry_after_s: float) -> None:
        wait_s = min(max(retry_after_s, SHORTEST_RETRY_S), LONGEST_RETRY_S)
        super().__init__(message, retry_after_s=wait_s)
        self.limit = limit


class KeyUse:
    """The use of one key. `limits` can change at any time. `refused` is called whenever a limit is
    reached. If other gateways share the limits, `shared` is the key's use across all of them.

    If keys aren't required, a single key without a name stands for all requests.
    """

    def __init__(
        self,
        name: str = "",
        limits: KeyLimits = NO_LIMITS,
        refused: Callable[[str], None] = lambda _: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        shared: SharedUse | None = None,
    ) -> None:
        self.name = name
        self.limits = limits
        self._told = refused
        self._clock = clock
        self._shared = shared
        self._requests = self._minute("requests_per_minute")
        self._audio = self._minute("audio_seconds_per_minute")
        self._running = RoleSlots()
        self._conversations = RoleSlots()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Return a context manager that covers one request. Raises `KeyLimitReached` if a limit has
        been reached.
        """
        with ExitStack() as held:
            with self._alone():
                self._check_held("concurrency", self._running, "requests")
                self.count()
                held.enter_context(self._held("concurrency", self._running))
            yield

    def count(self) -> None:
        """Count a request as one of the requests per minute, but not towards `concurrency`.

        Such a request runs concurrently with another one and must not cause that one to be refused.
        Raises `KeyLimitReached` if the limit has been reached.
        """
        with self._alone():
            self._check_minute("requests_per_minute", self._requests)
            self._check_minute("audio_seconds_per_minute", self._audio)
            self._requests.add(1, self._clock())

    @contextmanager
    def conversation(self) -> Iterator[None]:
        """Return a context manager that covers one conversation. Raises `KeyLimitReached` if a
        limit has been reached.
        """
        with ExitStack() as held:
            with self._alone():
                self._check_held("conversations", self._conversations, "conversations")
                held.enter_context(self._held("conversations", self._conversations))
            yield

    @property
    def in_use(self) -> bool:
        """Whether the key has a request or a conversation in progress."""
        return bool(self._running.held or self._conversations.held)

    def add_audio(self, seconds: float) -> None:
        """Count audio that was generated for this key."""
        self._audio.add(seconds, self._clock())
        if self._shared is not None:
            self._shared.save()

    def _minute(self, limit: str) -> LastMinute | SharedMinute:
        return LastMinute() if self._shared is None else self._shared.minute(limit)

    def _alone(self) -> AbstractContextManager[object]:
        """Return a context manager in which no other gateway counts anything. See `SharedUses`."""
        return nullcontext() if self._shared is None else self._shared.decision()

    @contextmanager
    def _held(self, limit: str, slots: RoleSlots) -> Iterator[None]:
        began = self._clock()
        slots.take(1, began)
        try:
            if self._shared is not None:
                self._shared.hold(limit, slots.held)
            yield
        finally:
            slots.give_back(1, began, self._clock(), measured=True)
            if self._shared is not None:
                self._shared.hold(limit, slots.held)
                self._shared.save()

    def _check_held(self, limit: str, slots: RoleSlots, what: str) -> None:
        most = getattr(self.limits, limit)
        if most is None:
            return
        held = slots.held + self._held_elsewhere(limit)
        if held >= most and self._shared is not None:
            self._shared.forget_lost(limit)
            held = slots.held + self._held_elsewhere(limit)
        if held >= most:
            service_s = slots.service_s(self._clock()) or 0.0
            self._refuse(limit, f"{held} {what} are in progress", service_s / most)

    def _held_elsewhere(self, limit: str) -> int:
        return 0 if self._shared is None else self._shared.held_elsewhere(limit)

    def _check_minute(self, limit: str, minute: LastMinute | SharedMinute) -> None:
        most, now = getattr(self.limits, limit), self._clock()
        if most is not None and (total := minute.total(now)) >= most:
            after_s = minute.below_after_s(most, now)
            self._refuse(limit, f"{math.floor(total)} in the last minute", after_s)

    def _refuse(self, limit: str, what: str, retry_after_s: float) -> None:
        self._told(f"key_{limit}")
        most = getattr(self.limits, limit)
        raise KeyLimitReached(
            limit,
            f"the key {self.name} has reached its limit {limit} of {most}: {what}",
            retry_after_s,
        )
