"""A Pipecat bot that converses by microphone and loudspeakers, over the realtime API."""

import argparse
import asyncio

from openai import OpenAI
from pipecat.frames.frames import ErrorFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    AssistantTurnStoppedMessage,
    LLMContextAggregatorPair,
    UserTurnMessageAddedMessage,
)
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.openai.realtime.events import (
    AudioConfiguration,
    AudioInput,
    InputAudioTranscription,
    SessionProperties,
)
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.transports.local.audio import LocalAudioTransport, LocalAudioTransportParams
from pipecat.workers.runner import WorkerRunner

RATE_HZ = 24_000

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--url", default="http://localhost:8000")
arguments.add_argument("--instructions", default="")
options = arguments.parse_args()


async def main() -> None:
    """Hold the conversation until it is interrupted with Ctrl-C."""
    model = OpenAI(base_url=f"{options.url}/v1", api_key="none").models.list().data[0].id
    llm = OpenAIRealtimeLLMService(
        api_key="none",
        base_url=f"{options.url.replace('http', 'ws', 1)}/v1/realtime",
        settings=OpenAIRealtimeLLMService.Settings(
            model=model,
            system_instruction=options.instructions,
            # Without this, the user's speech isn't transcribed.
            session_properties=SessionProperties(
                audio=AudioConfiguration(
                    input=AudioInput(transcription=InputAudioTranscription(model=model))
                )
            ),
        ),
    )
    # You can replace this with any other Pipecat transport, such as WebRTC, a WebSocket or a
    # telephone call.
    transport = LocalAudioTransport(
        LocalAudioTransportParams(audio_in_enabled=True, audio_out_enabled=True)
    )
    aggregators = LLMContextAggregatorPair(LLMContext())
    user, assistant = aggregators.user(), aggregators.assistant()
    worker = PipelineWorker(
        Pipeline([transport.input(), user, llm, transport.output(), assistant]),
        params=PipelineParams(audio_in_sample_rate=RATE_HZ, audio_out_sample_rate=RATE_HZ),
        idle_timeout_secs=None,
    )

    @user.event_handler("on_user_turn_message_added")
    async def _(_: FrameProcessor, message: UserTurnMessageAddedMessage) -> None:
        print(f"You: {message.content}", flush=True)

    @assistant.event_handler("on_assistant_turn_stopped")
    async def _(_: FrameProcessor, message: AssistantTurnStoppedMessage) -> None:
        print(f"Model: {message.content}", flush=True)

    @worker.event_handler("on_pipeline_error")
    async def _(_: PipelineWorker, frame: ErrorFrame) -> None:
        print(f"Error: {frame.error}", flush=True)

    print("Speak; a pause ends your turn. Ctrl-C ends the conversation.", flush=True)
    runner = WorkerRunner()
    await runner.add_workers(worker)
    await runner.run()


asyncio.run(main())
