"""What requests ask for: their words, their lengths and how their output is cut. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from antiphon.sampling import SamplingRequest
from antiphon.segment import ChunkPolicy, Delivery
from antiphon.v1 import session_pb2
from antiphon.wire.convert import delivery_to_proto, policy_to_proto, sampling_to_proto

_SAID = (
    "a the one two day night river stone light house road people water music summer winter "
    "little large quiet early late open old new green blue tell ask walk carry find begin "
    "remember why how where when near under over after before and or but"
)
WORDS = tuple(_SAID.split())


@dataclass(frozen=True, slots=True)
class Content:
    """What is the same in all requests of a run.

    `prompt_length` is in words (for the talker: in tokens). `reply_tokens` and
    `frames` are the most of each, 0: the model decides. `prompts` are taken in turn;
    without any, words are drawn. `outputs` are those of the gateway's requests.
    """

    prompt_length: int = 32
    reply_tokens: int = 64
    frames: int = 100
    prompts: tuple[str, ...] = ()
    voice: str = ""
    outputs: tuple[str, ...] = ("text", "audio")
    delivery: Delivery | None = None
    chunk_policy: ChunkPolicy | None = None

    def prompt(self, number: int) -> str:
        """What request `number` says, always the same."""
        if self.prompts:
            return self.prompts[number % len(self.prompts)]
        return " ".join(random.Random(number).choices(WORDS, k=self.prompt_length))

    def thinker(self, number: int) -> SamplingRequest:
        """The text's sampling: a seed of its own for each request, and the length."""
        return SamplingRequest(seed=number, max_tokens=self.reply_tokens or None)

    def talker(self, number: int) -> SamplingRequest:
        """The speech's sampling; a limit of M draws gives at most M - 1 frames."""
        return SamplingRequest(seed=number, max_tokens=self.frames + 1 if self.frames else None)

    def segment_open(self, number: int, edges: tuple[str, ...]) -> session_pb2.SegmentOpen:
        """The message that opens the one segment of a session, whatever the stage."""
        message = session_pb2.SegmentOpen(
            sampling={
                "thinker": sampling_to_proto(self.thinker(number)),
                "talker": sampling_to_proto(self.talker(number)),
            },
            voice=self.voice,
            outputs=("text", "audio"),
        )
        if self.delivery is not None:
            for edge in edges:
                message.delivery[edge] = delivery_to_proto(self.delivery)
        if self.chunk_policy is not None:
            message.chunk_policy.CopyFrom(policy_to_proto(self.chunk_policy))
        return message
