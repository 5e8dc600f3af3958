"""The code2wav engine, which computes the audio of many segments.

If the `codes` edge is delivered whole, one minute of frames is decoded at a time, as in the
vendor's code. If the edge is streamed, frames are decoded in smaller windows, so the samples are
only approximately the same, as explained in `FrameCodecDecoder`. Which method is used depends only
on the delivery setting, not on when frames arrive.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.pipelines.mimo_audio import AUDIO, CODE2WAV, CODEBOOKS, CODES
from antiphon.runtime.engine import EngineEvent, SegmentSettings
from antiphon.values.segment import SegmentKey
from antiphon_services.mimo_audio.code2wav.decoder import FrameCodecDecoder
from antiphon_services.mimo_audio.code2wav.windows import DecodeWindow, WindowPlan
from antiphon_services.vocoder.least_served import LeastServedEngine, ServedSegment
from antiphon_services.vocoder.received_codes import ReceivedCodes

FRAMES_AT_A_TIME = 600
"""The number of frames to decode per step. A step starts another window until it reaches this
number.
"""


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
        """Decode the next window and emit the samples of its own frames."""
        window, codes = self.next_window, self.received.codes
        assert window is not None
        self.served += window.right - window.left
        samples = self.decoder.window_samples(codes[window.left : window.right], window)
        self.sent = window.stop
        return self.emit(samples, **{CODES: codes[window.first : window.stop]})


class WindowEngine(LeastServedEngine):
    """An engine with the input edge `codes` and the output edge `audio`.

    `context_limit` is the maximum number of frames in a segment. `streamed` is the window plan for
    streamed segments.
    """

    def __init__(
        self, decoder: FrameCodecDecoder, streamed: WindowPlan, *, context_limit: int, slots: int
    ) -> None:
        super().__init__(CODE2WAV, slots=slots, step_work=FRAMES_AT_A_TIME)
        self._decoder, self._streamed = decoder, streamed
        self._context_limit = context_limit

    def open(self, key: SegmentKey, settings: SegmentSettings) -> WindowSegment:
        """Create a segment."""
        return WindowSegment(
            key=key,
            audio=AUDIO,
            wanted=AUDIO in settings.outputs,
            received=ReceivedCodes(CODES, len(CODEBOOKS), CODEBOOKS, self._context_limit, "frame"),
            decoder=self._decoder,
            plan=WindowPlan(None) if CODES in settings.whole_inputs else self._streamed,
        )
