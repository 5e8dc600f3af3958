"""A call with Pipecat's pipeline and its service for realtime models. Its argument is the URL."""

from __future__ import annotations

import asyncio
import sys

from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMMessagesAppendFrame,
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


class Listener(FrameProcessor):
    """Takes what would be heard, and tells each answer's end."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: asyncio.Queue[tuple[str, int] | ErrorFrame] = asyncio.Queue()
        self._text, self._audio = "", 0

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            assert (frame.sample_rate, frame.num_channels) == (24_000, 1)
            self._audio += len(frame.audio)
        elif isinstance(frame, TTSTextFrame):
            self._text += frame.text
        elif isinstance(frame, LLMFullResponseEndFrame):
            await self.answers.put((self._text, self._audio))
            self._text, self._audio = "", 0
        await self.push_frame(frame, direction)


async def talk(url: str) -> None:
    """A question that is there when the pipeline starts, and another one."""
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
    async with asyncio.timeout(WAIT_S):
        await worker.queue_frame(LLMContextFrame(context))
        for again in (True, False):
            answer = await listener.answers.get()
            assert not isinstance(answer, ErrorFrame), answer
            text, audio = answer
            assert ANSWER in text, text
            assert audio > 24_000 * 2
            if again:
                said = [{"role": "user", "content": QUESTION}]
                await worker.queue_frame(LLMMessagesAppendFrame(said, run_llm=True))
        await worker.queue_frame(EndFrame())
        await running


if __name__ == "__main__":
    asyncio.run(talk(sys.argv[1]))
