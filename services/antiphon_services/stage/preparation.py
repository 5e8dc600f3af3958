"""Prepares prompts on separate threads, because doing so on the engine's thread would delay every
reply.

It can take seconds to tokenize a long text, or to compute the mel features of a long recording.
`text_ids` (`services/antiphon_services/text/literal.py`) and torch release the GIL during this
time.

Long texts have a queue with one thread, and large recordings, images and videos have another one.
Small inputs have their own threads, so that they never wait for a large input. There are two of
these threads with a CPU, which makes four in total, and four with a GPU. When a segment is
released, its queued work is dropped. Work that is already in progress runs to completion, but its
result is dropped.

Preparing a short text takes less time than starting a thread, so it can be done synchronously if
this is enabled. With a GPU, only a limited number of texts is prepared between two steps, because
the GPU is idle while this happens.

The queues can't grow without bound, because each open segment has at most one preparation.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Generic, TypeVar

from antiphon.deployment.schema import StageConfig
from antiphon.errors import Internal, ResourceExhausted
from antiphon.values.segment import SegmentKey
from antiphon_services.stage.budgets import GPU_PREPARED_AT_ONCE, GPU_SMALL_THREADS, on_gpu

SHORT_TEXT_BYTES = 2 << 10
"""The maximum size of a text that is prepared synchronously. It takes 0.1 to 0.3 ms to prepare a
text of this size, which is about as long as it takes to start a thread while an engine is running.
"""

LARGE_TEXT_BYTES = 64 << 10
LARGE_MEDIA_BYTES = 4 << 20
"""The minimum size of an input that is considered large. An input of this size takes about 20 ms
and corresponds to a minute of audio.
"""

SMALL_AT_ONCE = 2
LARGE_AT_ONCE = 1  # The number of threads for large texts, and for other large inputs.
CLOSE_TIMEOUT_S = 5.0

PromptT = TypeVar("PromptT")

_log = logging.getLogger(__name__)


class Preparations(Generic[PromptT]):
    """Prepares prompts on a small number of threads, which end when there is no more work.

    A prompt without media and with up to `at_once_bytes` bytes of text is prepared by the calling
    thread. If `most_at_once` is set, it limits how many prompts are prepared in this way per step.
    Other small prompts are prepared by `small_threads` threads.
    """

    def __init__(
        self,
        at_once_bytes: int = 0,
        *,
        most_at_once: int | None = None,
        small_threads: int = SMALL_AT_ONCE,
    ) -> None:
        self._at_once_bytes = at_once_bytes
        self._most_at_once = most_at_once
        self._made_at_once = 0
        self._small: _Lane[PromptT] = _Lane("prepare", small_threads)
        self._text: _Lane[PromptT] = _Lane("prepare text", LARGE_AT_ONCE)
        self._media: _Lane[PromptT] = _Lane("prepare media", LARGE_AT_ONCE)

    @classmethod
    def of(cls, config: StageConfig, at_once_bytes: int = 0) -> Preparations[PromptT]:
        """Return an object with settings that are suitable for the stage's device."""
        if not on_gpu(config):
            return cls(at_once_bytes)
        return cls(
            at_once_bytes, most_at_once=GPU_PREPARED_AT_ONCE, small_threads=GPU_SMALL_THREADS
        )

    def begin_step(self) -> None:
        """Reset the count of prompts that have been prepared synchronously."""
        self._made_at_once = 0

    def begin(
        self,
        key: SegmentKey,
        make: Callable[[], PromptT],
        *,
        text_bytes: int,
        media_bytes: int,
    ) -> Future[PromptT]:
        """Start to prepare a prompt that consists of `text_bytes` bytes of text and `media_bytes`
        bytes of media.

        The future raises the errors of `make`, or `ResourceExhausted` if no thread can be started.
        """
        preparation: Future[PromptT] = Future()
        if text_bytes <= self._at_once_bytes and not media_bytes and self._may_make_at_once:
            self._made_at_once += 1
            _settle(preparation, _attempt(make))
            return preparation
        lane = self._small
        if text_bytes >= LARGE_TEXT_BYTES:
            lane = self._text
        elif media_bytes >= LARGE_MEDIA_BYTES:
            lane = self._media
        lane.put(key, make, preparation)
        return preparation

    @property
    def _may_make_at_once(self) -> bool:
        return self._most_at_once is None or self._made_at_once < self._most_at_once

    def drop(self, key: SegmentKey) -> None:
        """Drop a segment's queued work."""
        for lane in (self._small, self._text, self._media):
            lane.drop(key)

    def close(self) -> None:
        """Drop all queued work and wait for a limited time for work in progress to complete."""
        for lane in (self._small, self._text, self._media):
            lane.close(CLOSE_TIMEOUT_S)


def wait_for_one(preparations: Collection[Future[Any]]) -> None:
    """Wait until one of the preparations is complete. Returns immediately if there are none."""
    wait(preparations, return_when=FIRST_COMPLETED)


def wake_nobody() -> None:
    """The default function for `wake_with`, which does nothing."""


class _Lane(Generic[PromptT]):
    """A queue that processes work in order of arrival, on up to `at_once` threads."""

    def __init__(self, name: str, at_once: int) -> None:
        self._name = name
        self._at_once = at_once
        self._waiting: dict[SegmentKey, tuple[Callable[[], PromptT], Future[PromptT]]] = {}
        self._threads: set[threading.Thread] = set()
        self._state = threading.Lock()

    def put(
        self, key: SegmentKey, make: Callable[[], PromptT], preparation: Future[PromptT]
    ) -> None:
        with self._state:
            self._waiting[key] = (make, preparation)
            if len(self._threads) == self._at_once:
                return
            # If the engine's thread starts a thread, the new thread inherits its niceness.
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except Exception as error:
                _log.exception(
                    "%s: can't start another thread; using %d", self._name, len(self._threads)
                )
                if not self._threads:
                    del self._waiting[key]
                    preparation.set_exception(_no_thread(error))
            else:
                # The thread doesn't start any work until the lock is released.
                self._threads.add(thread)

    def drop(self, key: SegmentKey) -> None:
        with self._state:
            self._waiting.pop(key, None)

    def close(self, timeout_s: float) -> None:
        with self._state:
            self._waiting.clear()
            threads = list(self._threads)
        for thread in threads:
            thread.join(timeout_s)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            make, preparation = work
            outcome = _attempt(make)
            # Drop the reference, because the result refers to the whole input.
            del work, make
            _settle(preparation, outcome)
            del outcome, preparation

    def _next(self) -> tuple[Callable[[], PromptT], Future[PromptT]] | None:
        with self._state:
            if not self._waiting:
                self._threads.discard(threading.current_thread())
                return None
            return self._waiting.pop(next(iter(self._waiting)))


def _no_thread(error: Exception) -> ResourceExhausted:
    return ResourceExhausted(f"can't start a thread to prepare the prompt: {error}; try again")


def _settle(preparation: Future[PromptT], outcome: PromptT | Exception) -> None:
    if isinstance(outcome, Exception):
        preparation.set_exception(outcome)
    else:
        preparation.set_result(outcome)


def _attempt(make: Callable[[], PromptT]) -> PromptT | Exception:
    """Return the result of `make`, or the exception that it raises. Reference cycles through frames
    are removed.
    """
    try:
        return make()
    except Exception as error:
        return error
    except BaseException as error:
        # A panic in the tokenizer is not an ordinary Python exception.
        return Internal(f"preparing the prompt failed: {type(error).__name__}: {error}")
