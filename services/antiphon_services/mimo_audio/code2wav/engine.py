"""Code2wav's engine: audio of many segments.

If the edge `codes` is delivered whole, the frames of a minute are decoded together, as the vendor's
code does. If it is streamed, they are decoded in windows, whose samples are near to that: see
`FrameCodecDecoder` for why they differ. The delivery decides, not when frames
come.
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
"""Of all windows in a step; one more window is begun while it is not reached."""


class WindowEngine(LeastServedEngine):
    """`codes` in, `audio` out.

    `context_limit` is the most frames of a segment. Streams are decoded by `streamed`.
    """

    def __init__(
        self, decoder: FrameCodecDecoder, streamed: WindowPlan, *, context_limit: int, slots: int
    ) -> None:
        super().__init__(CODE2WAV, slots=slots, step_work=FRAMES_AT_A_TIME)
        self._decoder, self._streamed = decoder, streamed
        self._context_limit = context_limit

    def open(self, key: SegmentKey, settings: SegmentSettings) -> WindowSegment:
        """Return a new segment."""
        return WindowSegment(
            key=key,
            audio=AUDIO,
            wanted=AUDIO in settings.outputs,
            received=ReceivedCodes(CODES, len(CODEBOOKS), CODEBOOKS, self._context_limit, "frame"),
            decoder=self._decoder,
            plan=WindowPlan(None) if CODES in settings.whole_inputs else self._streamed,
        )
