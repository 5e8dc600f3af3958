"""The state of a code2wav segment: the frames received so far and the samples emitted so far."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.pipelines.mimo_audio import CODES
from antiphon.runtime.engine import EngineEvent
from antiphon_services.mimo_audio.code2wav.decoder import FrameCodecDecoder
from antiphon_services.mimo_audio.code2wav.windows import DecodeWindow, WindowPlan
from antiphon_services.vocoder.least_served import ServedSegment
from antiphon_services.vocoder.received_codes import ReceivedCodes


@dataclass(slots=True, kw_only=True)
class WindowSegment(ServedSegment):
    """An admitted segment that is decoded in the windows of `plan`.

    The samples of the first `sent` frames have already been emitted. A unit of work is a frame that
    the decoder processes.
    """

    received: ReceivedCodes
    decoder: FrameCodecDecoder
    plan: WindowPlan
    sent: int = 0

    @property
    def next_window(self) -> DecodeWindow | None:
        """The next window to decode, or None if there is currently none."""
        return self.plan.following(self.sent, self.received.count, finished=self.received.finished)

    @property
    def has_part(self) -> bool:
        """Implements `ServedSegment.has_part`."""
        return self.next_window is not None

    @property
    def all_sent(self) -> bool:
        """Implements `ServedSegment.all_sent`."""
        return self.sent == self.received.count

    def advance(self) -> list[EngineEvent]:
        """Decode the next window, and emit the samples of its own frames."""
        window, codes = self.next_window, self.received.codes
        assert window is not None
        self.served += window.right - window.left
        samples = self.decoder.window_samples(codes[window.left : window.right], window)
        self.sent = window.stop
        return self.emit(samples, **{CODES: codes[window.first : window.stop]})
