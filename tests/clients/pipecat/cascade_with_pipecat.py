"""A call with Pipecat's cascade as its quick start has it: OpenAI's services, voice activity and
turns with their defaults. Arguments: URL of a gateway that hears and answers, URL of one that reads
aloud, WAV of what is said, and its text."""

from __future__ import annotations

import asyncio
import sys
import wave
from collections.abc import Iterator

from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    LLMContextFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.workers.runner import WorkerRunner

QUESTION, ANSWER = "What is antiphon?", "Antiphon serves speech models as small services."
WAIT_S = 120
PIECE_S = 0.02
SPOKEN_HZ = 24_000


class Listener(FrameProcessor):
    """Collects the text and the audio of each answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: asyncio.Queue[tuple[str, int] | ErrorFrame] = asyncio.Queue()
        self._text, self._audio = "", 0

    async def answer(self) -> str:
        """The text of the next answer, whose audio has ended."""
        answer = await self.answers.get()
        assert not isinstance(answer, ErrorFrame), answer
        text, audio = answer
        # The voice has random weights: it may end after a few frames.
        assert audio > 0, text
        return text

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSTextFrame):
            self._text += frame.text
        elif isinstance(frame, TTSAudioRawFrame):
            assert (frame.sample_rate, frame.num_channels) == (SPOKEN_HZ, 1)
            self._audio += len(frame.audio)
        elif isinstance(frame, TTSStoppedFrame):
            await self.answers.put((self._text, self._audio))
            self._text, self._audio = "", 0
        await self.push_frame(frame, direction)


def pieces(path: str) -> Iterator[InputAudioRawFrame]:
    """A recording in pieces of 20 ms, and silence after it."""
    with wave.open(path) as file:
        rate_hz = file.getframerate()
        count = round(rate_hz * PIECE_S)
        while piece := file.readframes(count):
            yield InputAudioRawFrame(piece, rate_hz, 1)
    while True:
        yield InputAudioRawFrame(bytes(2 * count), rate_hz, 1)


async def speak(worker: PipelineWorker, recording: str) -> None:
    """Send a recording as a microphone does: turns are found by the clock, too."""
    for piece in pieces(recording):
        await worker.queue_frame(piece)
        await asyncio.sleep(PIECE_S)


async def talk(url: str, voice_url: str, recording: str, said_aloud: str) -> None:
    """A question that is there when the pipeline starts, then one that is spoken."""
    stt = OpenAISTTService(api_key="none", base_url=f"{url}/v1")
    llm = OpenAILLMService(api_key="none", base_url=f"{url}/v1")
    tts = OpenAITTSService(api_key="none", base_url=f"{voice_url}/v1")
    context = LLMContext([{"role": "user", "content": QUESTION}])
    aggregators = LLMContextAggregatorPair(
        context, user_params=LLMUserAggregatorParams(vad_analyzer=SileroVADAnalyzer())
    )
    listener = Listener()
    pipeline = Pipeline([stt, aggregators.user(), llm, tts, listener, aggregators.assistant()])
    worker = PipelineWorker(pipeline)

    @worker.event_handler("on_pipeline_error")
    async def failed(_: PipelineWorker, frame: ErrorFrame) -> None:
        await listener.answers.put(frame)

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    try:
        async with asyncio.timeout(WAIT_S):
            await worker.queue_frame(LLMContextFrame(context))
            text = await listener.answer()
            assert text == ANSWER, text
            microphone = asyncio.create_task(speak(worker, recording))
            assert await listener.answer()
            microphone.cancel()
            await worker.queue_frame(EndFrame())
            await running
        said = [each for each in context.messages if each["role"] == "user"]
        assert len(said) == 2, context.messages
        assert said[1]["content"] == said_aloud, context.messages
    finally:
        if not running.done():
            await worker.cancel()


if __name__ == "__main__":
    asyncio.run(talk(*sys.argv[1:]))
