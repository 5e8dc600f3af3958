"""The `vllm` engine of the talker.

It performs the same steps as the torch engine, but its layers run in vLLM's processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from antiphon.errors import AntiphonError
from antiphon.runtime.engine import EngineEvent, Failed, SegmentSettings
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.readback import Drawn
from antiphon_services.mimo_audio.talker.dialogue_segment import DialogueSegment
from antiphon_services.mimo_audio.talker.engine import SpeechTextEngine


class WatchedHost(Protocol):
    """Keeps vLLM running. Implemented by `antiphon_services.vllm.host.VllmHost`."""

    def check_up(self) -> None:
        """Raise `Unavailable` while vLLM is down."""

    def watch(self, changed: Callable[[AntiphonError | None], None]) -> None:
        """Implements `DetachedEngine.watch`."""


class VllmSpeechTextEngine(SpeechTextEngine):
    """Implements `antiphon.runtime.engine.DetachedEngine` and `PreparingEngine`.

    `close_vllm` stops vLLM's processes. The other arguments are passed to `SpeechTextEngine`.
    """

    def __init__(
        self,
        *arguments: Any,
        host: WatchedHost,
        close_vllm: Callable[[], None],
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._host = host
        self._close_vllm: Callable[[], None] | None = close_vllm

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment.

        Raises `Unavailable` while vLLM is down, and the errors of `SpeechTextEngine.admit`.
        """
        self._host.check_up()
        super().admit(key, settings)

    def take_drawn(
        self, segment: DialogueSegment, drawn: Drawn | AntiphonError
    ) -> Sequence[EngineEvent]:
        """Return the events for a position that was drawn, or for an error that ended the vLLM
        session.
        """
        if isinstance(drawn, AntiphonError):
            segment.end()
            return [Failed(segment.key, drawn)]
        return super().take_drawn(segment, drawn)

    def interrupt(self) -> None:
        """Does nothing, because a step only waits until vLLM completes its next step or stops."""

    def watch(self, changed: Callable[[AntiphonError | None], None]) -> None:
        """Implements `DetachedEngine.watch`."""
        self._host.watch(changed)

    def close(self) -> None:
        """Stop preparing prompts and stop vLLM's processes. Calling this again has no effect."""
        super().close()
        close, self._close_vllm = self._close_vllm, None
        if close is not None:
            close()
