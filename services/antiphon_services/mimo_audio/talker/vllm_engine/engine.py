"""The `vllm` engine of the talker: the torch engine's steps, with layers in vLLM's processes."""

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
    """What keeps vLLM running; `antiphon_services.vllm.host.VllmHost`."""

    def check_up(self) -> None:
        """Raise `Unavailable` while vLLM is down."""

    def watch(self, changed: Callable[[AntiphonError | None], None]) -> None:
        """See `DetachedEngine.watch`."""


class VllmSpeechTextEngine(SpeechTextEngine):
    """Implements `antiphon.runtime.engine.DetachedEngine` and `PreparingEngine`.

    `close_vllm` ends vLLM's processes. Other arguments are those of `SpeechTextEngine`.
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
        """Take a segment in. Raises `Unavailable` while vLLM is down, and what `SpeechTextEngine`
        does."""
        self._host.check_up()
        super().admit(key, settings)

    def take_drawn(
        self, segment: DialogueSegment, drawn: Drawn | AntiphonError
    ) -> Sequence[EngineEvent]:
        """What leaves with a position that was drawn, or the fault that ended vLLM's session."""
        if isinstance(drawn, AntiphonError):
            segment.end()
            return [Failed(segment.key, drawn)]
        return super().take_drawn(segment, drawn)

    def interrupt(self) -> None:
        """Nothing: a step waits for vLLM's next one at most, or for its end."""

    def watch(self, changed: Callable[[AntiphonError | None], None]) -> None:
        """See `DetachedEngine.watch`."""
        self._host.watch(changed)

    def close(self) -> None:
        """Make no more prompts and end vLLM's processes; calls after the first do nothing."""
        super().close()
        close, self._close_vllm = self._close_vllm, None
        if close is not None:
            close()
