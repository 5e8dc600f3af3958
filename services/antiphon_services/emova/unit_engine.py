"""The engine of a stage that synthesizes speech from units for many segments.

Synthesis starts after all units of a segment have arrived. The first step computes all latents, and
each subsequent step decodes a window of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from antiphon.errors import InvalidArgument
from antiphon.runtime.engine import EngineEvent, SegmentSettings
from antiphon.values.segment import SegmentKey
from antiphon_services.emova.synthesizer import SpeechLatents, UnitSynthesizer
from antiphon_services.emova.unit_decoder_sizes import UNIT_ENTRIES
from antiphon_services.vocoder.audio_segment import VocoderEdges
from antiphon_services.vocoder.least_served import LeastServedEngine, ServedSegment
from antiphon_services.vocoder.received_codes import ReceivedCodes

WINDOW_FRAMES = 256
"""The number of latents to decode at a time, which corresponds to three seconds."""
FRAMES_A_STEP = 2 * WINDOW_FRAMES


@dataclass(frozen=True, slots=True)
class UnitStyles:
    """The indices of the styles by name.

    `option` is the name of the request option that selects a style. `default` is the style that is
    used if this option is not set.
    """

    numbers: Mapping[str, int]
    option: str
    default: str

    def number(self, settings: SegmentSettings) -> int:
        """Return the index of the requested style. Style names are not case-sensitive.

        Raises `InvalidArgument` if the checkpoint does not contain the style.
        """
        asked = str(settings.options.get(self.option, self.default))
        for name, number in self.numbers.items():
            if name.casefold() == asked.casefold():
                return number
        raise InvalidArgument(
            f"options.{self.option}: must be one of {', '.join(self.numbers)}",
            field=f"options.{self.option}",
        )


@dataclass(slots=True, kw_only=True)
class UnitSegment(ServedSegment):
    """An admitted segment.

    `style` is the index of its style, and `seed` determines its noise. The samples of the first
    `sent` latents have already been emitted. A unit of work is one latent that is computed or
    decoded.
    """

    received: ReceivedCodes
    synthesizer: UnitSynthesizer
    style: int
    seed: int
    latents: SpeechLatents | None = None
    sent: int = 0

    @property
    def all_sent(self) -> bool:
        """Implements `ServedSegment.all_sent`."""
        spoken = self.latents is not None and self.sent == self.latents.frames
        return spoken or not self.received.count

    def advance(self) -> list[EngineEvent]:
        """Compute the latents, or decode the next window of them."""
        if self.latents is None:
            self.latents = self._speech_latents()
            self.served += self.latents.frames
            return []
        first, self.sent = self.sent, min(self.sent + WINDOW_FRAMES, self.latents.frames)
        samples = self.synthesizer.samples(self.latents, first, self.sent)
        self.served += self.sent - first
        return self.emit(samples)

    def _speech_latents(self) -> SpeechLatents:
        """Compute the latents. If the speech is too long, the error names the edge."""
        edge = self.received.edge
        try:
            return self.synthesizer.latents(self.received.codes, self.style, self.seed)
        except InvalidArgument as error:
            raise InvalidArgument(f"{edge}: {error}", field=edge, edge=edge) from None


class UnitEngine(LeastServedEngine):
    """An engine that receives units and emits samples.

    `context_limit` is the maximum number of units in a segment.
    """

    def __init__(
        self,
        synthesizer: UnitSynthesizer,
        styles: UnitStyles,
        edges: VocoderEdges,
        role: str,
        *,
        context_limit: int,
        slots: int,
    ) -> None:
        super().__init__(role, slots=slots, step_work=FRAMES_A_STEP)
        self._synthesizer, self._styles = synthesizer, styles
        self._edges, self._context_limit = edges, context_limit

    def open(self, key: SegmentKey, settings: SegmentSettings) -> UnitSegment:
        """Create a segment. Raises `InvalidArgument` if the style is unknown."""
        return UnitSegment(
            key=key,
            audio=self._edges.audio,
            wanted=self._edges.audio in settings.outputs,
            received=ReceivedCodes(
                self._edges.frames, None, UNIT_ENTRIES, self._context_limit, "id"
            ),
            synthesizer=self._synthesizer,
            style=self._styles.number(settings),
            seed=settings.sampling.seed,
        )
