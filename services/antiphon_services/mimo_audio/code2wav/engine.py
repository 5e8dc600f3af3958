"""The code2wav engine, which computes the audio of many segments.

If the edge `codes` is delivered whole, one minute of frames is decoded at a time, as in the
vendor's code. If the edge is streamed, frames are decoded in smaller windows, so the samples are
only approximately the same, as explained in `FrameCodecDecoder`. Which of these applies depends on
the delivery setting and not on when frames arrive.
"""

from __future__ import annotations

from antiphon.pipelines.mimo_audio import AUDIO, CODE2WAV, CODEBOOKS, CODES
from antiphon.runtime.engine import SegmentSettings
from antiphon.values.segment import SegmentKey
from antiphon_services.mimo_audio.code2wav.decoder import FrameCodecDecoder
from antiphon_services.mimo_audio.code2wav.window_segment import WindowSegment
from antiphon_services.mimo_audio.code2wav.windows import WindowPlan
from antiphon_services.vocoder.least_served import LeastServedEngine
from antiphon_services.vocoder.received_codes import ReceivedCodes

FRAMES_AT_A_TIME = 600
"""The number of frames to decode per step. A step starts another window until it reaches this
number.
"""


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
