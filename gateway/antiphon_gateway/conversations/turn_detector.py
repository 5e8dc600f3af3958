"""Detects turns in the input audio of a conversation.

`append` doesn't return until its audio has been processed. This way, a command sees the effects of
all audio before it, and clients that send audio too fast are slowed down.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.values.live_conversation import SilencePassed, SpeechBegan, SpeechEnded, VoiceTurns
from antiphon_gateway.conversations.input_audio import InputAudioBuffer
from antiphon_gateway.conversations.items import new_id
from antiphon_gateway.media.audio_out import SAMPLE_BYTES
from antiphon_gateway.media.pcm_recording import PcmRecording
from antiphon_gateway.voice_activity.endpointing import EndpointRule, SpeechEdge
from antiphon_gateway.voice_activity.listener import VoiceListener
from antiphon_gateway.voice_activity.vad_stream import VadStream

UNDECIDED_S = 0.25
"""The maximum length of the speech that is processed before its start is reported, in seconds. It
is the sum of the minimum length of speech, one frame, and the samples in the resampler.
"""


@dataclass(frozen=True, slots=True)
class TurnSoFar:
    """A turn in progress, with its number and the number of samples that are certain to belong to
    it.
    """

    number: int
    samples: int
    rate_hz: int


@dataclass(frozen=True, slots=True)
class TurnHeard:
    """The end of speech, with the audio of the turn."""

    stopped: SpeechEnded
    recording: PcmRecording


class TurnDetector:
    """Detects turns in the input audio. Between turns, it keeps only the audio that may be needed
    for the next turn.
    """

    def __init__(self, listener: VoiceListener, turns: VoiceTurns | None, *, max_s: float) -> None:
        self._listener = listener
        self._turns = turns
        self._buffer = InputAudioBuffer(max_s=max_s)
        self._ear: VadStream | None = None
        self._ear_start = 0
        self._speech_id = ""
        self._number = 0
        self._every_s: float | None = None

    @property
    def number(self) -> int:
        """The number of the current turn."""
        return self._number

    @property
    def waits_for_client(self) -> bool:
        """Whether only the client ends turns, so that audio is just added to the buffer."""
        return self._turns is None and self._every_s is None

    @property
    def so_far(self) -> TurnSoFar | None:
        """The current turn, or None. A turn lasts until its end is detected or the client ends it.

        The detected end can be slightly before the last audio that was processed.
        """
        buffer = self._buffer
        samples = buffer.end - buffer.start
        if self._turns is not None:
            samples -= round(UNDECIDED_S * buffer.rate_hz)
        if samples <= 0 or not (self._turns is None or self._speech_id):
            return None
        return TurnSoFar(self._number, samples, buffer.rate_hz)

    def of_turn(self, start: int, stop: int) -> bytes:
        """Return samples of the current turn. Positions are relative to the start of the turn."""
        return self._buffer.cut(start, stop)

    @property
    def speaking(self) -> bool:
        """Whether the user is in the middle of a turn."""
        return bool(self._speech_id)

    @property
    def size_bytes(self) -> int:
        """The number of bytes that are kept."""
        return self._buffer.size_bytes

    def detect(self, turns: VoiceTurns | None, every_s: float | None = None) -> None:
        """Set how turns are detected. If `turns` is None and `every_s` is set, each turn ends after
        `every_s` seconds.

        If this changes the setting while a turn is in progress, the end of that turn isn't
        reported.
        """
        self._every_s = every_s
        if turns != self._turns:
            self._turns = turns
            self._stop_listening()

    def joined_bytes(self, rate_hz: int) -> int:
        """Return the size up to which audio has the same effect whether or not it is appended in
        pieces.
        """
        # Timed turns are answered between two pieces.
        return self._buffer.room_bytes(rate_hz) if self._every_s is None else 0

    async def append(self, pcm16: bytes, rate_hz: int) -> list[SpeechBegan | TurnHeard]:
        """Process more audio. Returns the starts and ends of speech in it. Raises the errors of the
        buffer.
        """
        if self._turns is None:
            self.buffer(pcm16, rate_hz)
            return []
        # Check this first. Otherwise, a turn might be ended to make room for the audio, and then be
        # lost together with it.
        self._buffer.check_length(pcm16, rate_hz)
        heard = self._make_room(self._turns, pcm16, rate_hz)
        self._buffer.append(pcm16, rate_hz)
        if self._ear is None:
            self._ear = VadStream(
                rate_hz, EndpointRule(self._turns.threshold, self._turns.silence_s)
            )
            self._ear_start = self._buffer.end - len(pcm16) // 2
        for edge in await self._listener.listen(self._ear, pcm16):
            heard.append(self._started(edge) if edge.begins else self._ended(self._at(edge)))
        self._trim()
        return heard

    def buffer(self, pcm16: bytes, rate_hz: int) -> None:
        """Add more audio without looking for turns in it. Raises the errors of the buffer."""
        self._buffer.append(pcm16, rate_hz)

    async def append_silence(self, seconds: float) -> list[SpeechBegan | TurnHeard]:
        """Process silence as if it had been received from the client. Raises the errors of the
        buffer.
        """
        rate_hz = self._buffer.rate_hz
        return await self.append(bytes(round(seconds * rate_hz) * SAMPLE_BYTES), rate_hz)

    @property
    def has_slice(self) -> bool:
        """Whether there is enough audio for the next slice of timed audio."""
        size = self._slice_samples
        return size > 0 and self._buffer.end - self._buffer.start >= size

    @property
    def _slice_samples(self) -> int:
        return round((self._every_s or 0.0) * self._buffer.rate_hz)

    def next_slice(self) -> tuple[str, PcmRecording] | None:
        """Return the next slice of timed audio as a message, or None if there isn't enough audio
        yet.
        """
        if not self.has_slice:
            return None
        until = self._buffer.start + self._slice_samples
        recording = self._buffer.take(self._number, until)
        self._number += 1
        return new_id("item"), recording

    def commit(self) -> tuple[str, PcmRecording]:
        """Turn the buffered audio into a message, with the ID from the speech events.

        Raises `NoAudio` if there is no audio.
        """
        recording = self._buffer.take(self._number)
        self._number += 1
        return self._forget_speech() or new_id("item"), recording

    def clear(self) -> None:
        """Discard the buffered audio. If the user is speaking, the speech is considered to start
        now.
        """
        self._buffer.clear()
        self._number += 1
        self._forget_speech()

    def time_out(self) -> tuple[SilencePassed, PcmRecording] | None:
        """Turn the silence so far into a message. Returns None if no audio has arrived."""
        if self._buffer.end == self._buffer.start:
            return None
        start_s = self._buffer.seconds(self._buffer.start)
        end_s = self._buffer.seconds(self._buffer.end)
        item_id, recording = self.commit()
        return SilencePassed(item_id, start_s, end_s), recording

    def _make_room(
        self, turns: VoiceTurns, pcm16: bytes, rate_hz: int
    ) -> list[SpeechBegan | TurnHeard]:
        """End the turn if it has reached the maximum length of a recording or if the new audio has
        a different sample rate.
        """
        if self._buffer.rate_hz not in (0, rate_hz):
            self._buffer.clear()
            self._stop_listening()
        if not self._speech_id or self._buffer.has_room(pcm16, rate_hz):
            return []
        ended = self._ended(self._buffer.end)
        self._forget_speech()
        return [ended]

    def _at(self, edge: SpeechEdge) -> int:
        """Return the position of an edge."""
        assert self._ear is not None
        return self._ear_start + self._ear.samples_at(edge.frame)

    def _started(self, edge: SpeechEdge) -> SpeechBegan:
        assert self._turns is not None
        padding = round(self._turns.prefix_padding_s * self._buffer.rate_hz)
        self._buffer.drop_before(self._at(edge) - padding)
        self._speech_id = new_id("item")
        self._number += 1
        return SpeechBegan(self._speech_id, self._buffer.seconds(self._buffer.start))

    def _ended(self, position: int) -> TurnHeard:
        # The audio that is currently being processed may belong to the next turn.
        item_id, self._speech_id = self._speech_id, ""
        recording = self._buffer.take(self._number, position)
        end_s = self._buffer.seconds(self._buffer.start)
        return TurnHeard(SpeechEnded(item_id, end_s), recording)

    def _forget_speech(self) -> str:
        """End the current speech and return its ID."""
        item_id, self._speech_id = self._speech_id, ""
        if self._ear is not None and self._ear.speaking:
            self._ear.forget()
        return item_id

    def _stop_listening(self) -> None:
        """Process further audio as if there had been no audio before it."""
        self._ear, self._speech_id = None, ""
        self._number += 1
        self._trim()

    def _trim(self) -> None:
        """Discard audio that can't become part of a turn any more."""
        if self._turns is not None and not self._speech_id:
            keep_s = self._turns.prefix_padding_s + UNDECIDED_S
            keep_s = max(keep_s, self._turns.idle_timeout_s or 0.0)
            self._buffer.drop_before(self._buffer.end - round(keep_s * self._buffer.rate_hz))
