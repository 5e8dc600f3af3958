"""The content of requests: their prompts, lengths and output chunks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from antiphon.pipelines.graph import CLIENT, Pipeline
from antiphon.v1 import session_pb2
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import ChunkPolicy, Delivery
from antiphon.wire.convert import delivery_to_proto, policy_to_proto, sampling_to_proto
from antiphon.wire.options import option_value_to_proto
from antiphon_tools.load.request_options import GivenOptions, to_stage

TEXT, AUDIO, IMAGE = "text", "audio", "image"
"""The possible outputs, which are also the names of edges to the client."""

LEAD = "Repeat after me: "
_SAID = (
    "a the one two day night river stone light house road people water music summer winter "
    "little large quiet early late open old new green blue tell ask walk carry find begin "
    "remember why how where when near under over after before and or but"
)
WORDS = tuple(_SAID.split())


@dataclass(frozen=True, slots=True)
class Content:
    """The properties that all requests of a run have in common.

    `prompt_length` is in words, or in tokens if the stage receives tokens. `reply_tokens` and
    `frames` are maximum lengths, or 0 to let the model decide. If there are `prompts`, they are
    used in turn. Otherwise, prompts ask the model to repeat random words, so that a reply is as
    long as its prompt. `outputs` contains the outputs to request from the gateway, which are all
    available outputs if it is empty. `options` contains model options.
    """

    prompt_length: int = 12
    reply_tokens: int = 64
    frames: int = 100
    prompts: tuple[str, ...] = ()
    voice: str = ""
    outputs: tuple[str, ...] = ()
    delivery: Delivery | None = None
    chunk_policy: ChunkPolicy | None = None
    options: GivenOptions = field(default_factory=dict)

    def prompt(self, number: int) -> str:
        """Return the prompt for request `number`. It is the same on each call."""
        if self.prompts:
            return self.prompts[number % len(self.prompts)]
        return f"{LEAD}{' '.join(random.Random(number).choices(WORDS, k=self.prompt_length))}."

    def sampling(self, number: int, *, text: bool) -> SamplingRequest:
        """Return the sampling parameters for a stage, which generates text if `text` is true and
        codec frames otherwise.

        Each request has its own seed. A limit of M draws results in at most M - 1 frames.
        """
        most = self.reply_tokens if text else self.frames and self.frames + 1
        return SamplingRequest(seed=number, max_tokens=most or None)

    def segment_open(self, pipeline: Pipeline, role: str, number: int) -> session_pb2.SegmentOpen:
        """Return the message that opens the only segment of a session on a stage."""
        makers = {edge.producer for edge in pipeline.edges if edge.name == TEXT}
        message = session_pb2.SegmentOpen(
            sampling={
                stage.role: sampling_to_proto(self.sampling(number, text=stage.role in makers))
                for stage in pipeline.stages
                if stage.samples
            },
            voice=self.voice,
            outputs=[edge.name for edge in pipeline.edges if CLIENT in edge.consumers],
        )
        if self.delivery is not None:
            for edge in pipeline.edges:
                if edge.producer != CLIENT:
                    message.delivery[edge.name] = delivery_to_proto(self.delivery)
        for name, value in to_stage(self.options, pipeline.stage(role).options).items():
            message.options[name].CopyFrom(option_value_to_proto(value))
        if self.chunk_policy is not None:
            message.chunk_policy.CopyFrom(policy_to_proto(self.chunk_policy))
        return message
