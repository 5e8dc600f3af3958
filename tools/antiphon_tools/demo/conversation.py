"""A conversation with a running deployment. Each request includes all previous turns."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path

from antiphon.client.aio import AsyncClient
from antiphon.client.reply import BYTES_PER_SAMPLE
from antiphon.client.request import Message
from antiphon.deployment.schema import GatewayConfig
from antiphon_tools.demo.display import Display
from antiphon_tools.demo.measure import MeasuredAnswer, measure
from antiphon_tools.demo.script import DONE, Question, ScriptTurn
from antiphon_tools.demo.timeline import conversation_pcm16, place_turns
from antiphon_tools.demo.waveform import from_pcm16

SEED = 1
REMEMBERED_TURNS = 2
"""The number of earlier turns to send. If there are more, the embedded model confuses the
answers.
"""
CONVERSATION_FILE, PICTURE_FILE = "conversation.wav", "demo.png"
NO_PICTURE = (
    f"{PICTURE_FILE} was not created, because it requires matplotlib (.venv/bin/pip install "
    "matplotlib)."
)


class DemoConversation:
    """Asks questions, displays the answers and saves them.

    `voices` contains the voices that the server offers. `turns` contains the turns so far.
    """

    def __init__(
        self, client: AsyncClient, voices: Sequence[str], out: Path, display: Display
    ) -> None:
        self.turns: list[ScriptTurn] = []
        self._client = client
        self._voices = voices
        self._out = out
        self._display = display
        self._messages: list[Message] = []

    async def say(self, question: Question) -> ScriptTurn:
        """Ask a question, display the answer while it arrives, and save its audio.

        Raises `AntiphonError` if the request fails.
        """
        voice = self._voices[question.voice % len(self._voices)] if self._voices else ""
        asked = [*self._messages, Message.user(question.recording or question.text)]
        if question.recording is not None:
            self._display.transcript(await self._transcribe(question.recording))
        self._display.begin(voice or "antiphon")
        answer = await self._answer(asked, voice, question)
        calls = answer.reply.calls
        if calls:
            self._display.call(calls, DONE)
            told = [Message.tool(call, DONE) for call in calls]
            called = [*asked, Message.assistant(calls=calls), *told]
            answer = await self._answer(called, voice, question)
        turn = ScriptTurn(question.text, voice, answer)
        self.turns.append(turn)
        path = self._out / f"turn-{len(self.turns)}.wav"
        saved = answer.reply.save_wav(path) if answer.reply.pcm16 else None
        self._display.end(answer, saved)
        if answer.reply.text:
            said = [*asked, Message.assistant(answer.reply.text)]
            self._messages = said[-2 * REMEMBERED_TURNS :]
        return turn

    async def _transcribe(self, recording: Path) -> str:
        """Return the transcript of a recording, using the gateway's transcription instruction."""
        asked = [Message.user(recording, GatewayConfig().media.transcribe_instruction)]
        generation = self._client.generate(asked, modalities=("text",), functions=())
        return (await measure(generation, lambda _: None)).reply.text

    async def _answer(
        self, asked: Sequence[Message], voice: str, question: Question
    ) -> MeasuredAnswer:
        """Ask a question and display the answer while it arrives."""
        generation = self._client.generate(
            asked, voice=voice, seed=SEED, functions=question.functions
        )
        return await measure(generation, self._display.show)

    def save(self, stages: Sequence[str]) -> list[str]:
        """Write the audio and a picture of the conversation.

        Returns a line about each file, including files that could not be written. If there is no
        audio, nothing is written.
        """
        placed = [each for each in place_turns(self.turns) if each.turn.answer.reply.pcm16]
        if not placed:
            return ["No speech was generated, so there is no audio to save."]
        sample_rate_hz = placed[0].turn.answer.reply.sample_rate_hz
        pcm16 = conversation_pcm16(placed, sample_rate_hz)
        sound, picture = self._out / CONVERSATION_FILE, self._out / PICTURE_FILE
        _write_wav(sound, pcm16, sample_rate_hz)
        said = [f"The whole conversation: {sound}"]
        try:
            from antiphon_tools.demo.picture import draw_conversation
        except ImportError:
            return [*said, NO_PICTURE]
        draw_conversation(placed, from_pcm16(pcm16), sample_rate_hz, stages, picture)
        return [*said, f"How it looks:           {picture}"]


def _write_wav(path: Path, pcm16: bytes, sample_rate_hz: int) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(BYTES_PER_SAMPLE)
        file.setframerate(sample_rate_hz)
        file.writeframes(pcm16)
