"""A call with LiveKit's agent session as its quick start has it: OpenAI's plugin for every part of
the cascade, voice activity and turns with their defaults. Arguments: URL of a gateway that hears
and answers, URL of one that reads aloud, WAV of what is said, and its text."""

from __future__ import annotations

import asyncio
import sys
import wave
from collections.abc import Iterator

from livekit import rtc
from livekit.agents import Agent, AgentSession, ErrorEvent
from livekit.agents.voice.io import AudioInput, AudioOutput, AudioOutputCapabilities
from livekit.plugins import openai

QUESTION, ANSWER = "What is antiphon?", "Antiphon serves speech models as small services."
WAIT_S = 120
PIECE_S = 0.02


class Microphone(AudioInput):
    """Gives a recording, once it is told to, as fast as a microphone does."""

    def __init__(self, path: str) -> None:
        super().__init__(label="recording")
        self.speaking = False
        self._pieces = pieces(path)
        self._silence = next(silence(path))

    async def __anext__(self) -> rtc.AudioFrame:
        await asyncio.sleep(PIECE_S)
        return next(self._pieces) if self.speaking else self._silence


class Loudspeaker(AudioOutput):
    """Counts the samples of each answer, which it plays in no time."""

    def __init__(self) -> None:
        super().__init__(label="answers", capabilities=AudioOutputCapabilities(pause=False))
        self.answers: asyncio.Queue[int] = asyncio.Queue()
        self._samples, self._seconds = 0, 0.0

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if not self._samples:
            self.on_playback_started(created_at=0.0)
        self._samples += frame.samples_per_channel
        self._seconds += frame.duration

    def flush(self) -> None:
        super().flush()
        self._end(interrupted=False)

    def clear_buffer(self) -> None:
        self._end(interrupted=True)

    def _end(self, *, interrupted: bool) -> None:
        if self._samples:
            self.answers.put_nowait(self._samples)
            seconds, self._samples, self._seconds = self._seconds, 0, 0.0
            self.on_playback_finished(playback_position=seconds, interrupted=interrupted)


def pieces(path: str) -> Iterator[rtc.AudioFrame]:
    """A recording in pieces of 20 ms, and silence after it."""
    with wave.open(path) as file:
        rate_hz = file.getframerate()
        count = round(rate_hz * PIECE_S)
        while len(piece := file.readframes(count)) == 2 * count:
            yield rtc.AudioFrame(piece, rate_hz, 1, count)
    yield from silence(path)


def silence(path: str) -> Iterator[rtc.AudioFrame]:
    """Pieces of silence at the recording's rate."""
    with wave.open(path) as file:
        rate_hz = file.getframerate()
    count = round(rate_hz * PIECE_S)
    while True:
        yield rtc.AudioFrame(bytes(2 * count), rate_hz, 1, count)


async def talk(url: str, voice_url: str, recording: str, said_aloud: str) -> None:
    """A typed question, then one that is spoken."""
    session = AgentSession(
        stt=openai.STT(api_key="none", base_url=f"{url}/v1"),
        llm=openai.LLM(api_key="none", base_url=f"{url}/v1"),
        tts=openai.TTS(api_key="none", base_url=f"{voice_url}/v1"),
    )
    microphone, loudspeaker = Microphone(recording), Loudspeaker()
    session.input.audio, session.output.audio = microphone, loudspeaker
    failures: list[object] = []

    @session.on("error")
    def failed(event: ErrorEvent) -> None:
        failures.append(event.error)
        loudspeaker.answers.put_nowait(0)

    async with session, asyncio.timeout(WAIT_S):
        await session.start(Agent(instructions=""))
        await session.generate_reply(user_input=QUESTION)
        # The voice has random weights: it may end after a few frames.
        assert await loudspeaker.answers.get() > 0, failures
        microphone.speaking = True
        assert await loudspeaker.answers.get() > 0, failures
        messages = [(each.role, each.text_content) for each in session.history.messages()]
        assert ("assistant", ANSWER) in messages, messages
        said = [text for role, text in messages if role == "user"]
        assert said == [QUESTION, said_aloud], messages
    assert not failures, failures


if __name__ == "__main__":
    asyncio.run(talk(*sys.argv[1:]))
