"""A call with Pipecat's pipeline and its service for realtime models: URL, WAV of what is said."""

from __future__ import annotations

import asyncio
import sys
import wave
from collections.abc import Iterator

from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

QUESTION, ANSWER = "What is antiphon?", "Antiphon serves speech models as small services."
WAIT_S = 120
RATE_HZ = 24_000
PIECE_S = 0.02


class Listener(FrameProcessor):
    """Takes what would be heard, and tells each answer's end."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: asyncio.Queue[tuple[str, int] | ErrorFrame] = asyncio.Queue()
        self._text, self._audio = "", 0

    async def answer(self) -> tuple[str, int]:
        """The text of the next answer, and the bytes of its audio.

        An interruption may end one of which nothing has come.
        """
        text, audio = "", 0
        while not text:
            answer = await self.answers.get()
            assert not isinstance(answer, ErrorFrame), answer
            text, audio = answer
        return text, audio

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            assert (frame.sample_rate, frame.num_channels) == (RATE_HZ, 1)
            self._audio += len(frame.audio)
        elif isinstance(frame, TTSTextFrame):
            self._text += frame.text
        elif isinstance(frame, LLMFullResponseEndFrame):
            await self.answers.put((self._text, self._audio))
            self._text, self._audio = "", 0
        await self.push_frame(frame, direction)


def pieces(path: str) -> Iterator[bytes]:
    """A recording in pieces of 20 ms, and the pause that ends the turn."""
    with wave.open(path) as file:
        assert (file.getframerate(), file.getsampwidth()) == (RATE_HZ, 2)
        while piece := file.readframes(RATE_HZ // 50):
            yield piece
    for _ in range(100):
        yield bytes(2 * RATE_HZ // 50)


async def talk(url: str, recording: str) -> None:
    """A question that is there when the pipeline starts, then one that is spoken."""
    base_url, _, model = url.partition("?model=")
    settings = OpenAIRealtimeLLMService.Settings(model=model)
    llm = OpenAIRealtimeLLMService(api_key="none", base_url=base_url, settings=settings)
    context = LLMContext([{"role": "user", "content": QUESTION}])
    aggregators = LLMContextAggregatorPair(context)
    listener = Listener()
    pipeline = Pipeline([aggregators.user(), llm, listener, aggregators.assistant()])
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
            text, audio = await listener.answer()
            assert ANSWER in text, text
            assert audio > 2 * RATE_HZ
            for piece in pieces(recording):
                await worker.queue_frame(InputAudioRawFrame(piece, RATE_HZ, 1))
                # As fast as a microphone: the pipeline handles a beginning of speech beside the
                # other events, and would cut the answer to a turn that has ended meanwhile.
                await asyncio.sleep(PIECE_S)
            _, audio = await listener.answer()
            assert audio > 2 * RATE_HZ
            await worker.queue_frame(EndFrame())
            await running
    finally:
        if not running.done():
            await worker.cancel()


if __name__ == "__main__":
    asyncio.run(talk(*sys.argv[1:]))
