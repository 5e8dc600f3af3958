"""Listeners that hold a conversation in which the expected answer to each turn is known.

If the gateway is lost, the answer ends with the last piece that was received. The listener then
deletes this answer and requests it again, so that the rest of the conversation is as expected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from antiphon.client.aio_conversation import AsyncConversationCall
from antiphon.errors import AntiphonError, Internal, Unavailable
from antiphon.values.live_conversation import (
    CommandFailed,
    ConversationOpened,
    ResponseAudioDelta,
    ResponseDone,
    ResponseTextDelta,
)
from antiphon.values.sampling import INPUT_STAGE, SamplingRequest
from antiphon_tools.chaos.heard import Heard

MOST_LOST = 3
"""The maximum number of times to request the answer of a turn."""

Play = Callable[[bytes, Heard], Awaitable[None]]
"""Plays 16-bit samples and returns when they have been played."""


@dataclass(frozen=True, slots=True)
class KnownTalk:
    """The user's turns. Because decoding is greedy, the answers are always the same."""

    texts: tuple[str, ...]
    max_text: int
    max_frames: int

    def __str__(self) -> str:
        return f"a conversation ({', '.join(map(repr, self.texts))}, {self.max_frames} frames each)"

    def sampling(self, stages: Sequence[str]) -> Mapping[str, SamplingRequest]:
        """Return the sampling parameters for the text and for the stages that generate speech."""
        speaking = SamplingRequest(temperature=0.0, max_tokens=self.max_frames)
        said = SamplingRequest(temperature=0.0, max_tokens=self.max_text)
        return {**dict.fromkeys(stages, speaking), INPUT_STAGE: said}


async def hear_turns(call: AsyncConversationCall, talk: KnownTalk, play: Play) -> list[Heard]:
    """Return the answer to each text.

    If an error ends the conversation, it is stored in the last answer.
    """
    turns = []
    for text in talk.texts:
        heard = Heard()
        try:
            await call.add(text)
            for _ in range(MOST_LOST):
                if await _hear_answer(call, heard, play):
                    break
                heard = Heard(asked_at=heard.asked_at, resumed=True)
            else:
                raise Unavailable(f"the answer to {text!r} was lost {MOST_LOST} times")
        except AntiphonError as error:
            heard.error = error
        turns.append(heard)
        if heard.error is not None:
            break
    return turns


async def _hear_answer(call: AsyncConversationCall, heard: Heard, play: Play) -> bool:
    """Receive an answer and return whether it is complete.

    If the answer was lost together with its gateway, it is deleted. Raises `AntiphonError` if the
    answer failed while the gateway was running.
    """
    gateway_lost = False
    await call.respond()
    async for event in call:
        match event:
            case ConversationOpened():
                gateway_lost = heard.resumed = True
            case CommandFailed(error):
                raise error
            case ResponseTextDelta():
                heard.text += event.text
            case ResponseAudioDelta():
                await play(event.pcm16, heard)
            case ResponseDone(response) if response.status != "failed":
                return True
            case ResponseDone(response) if not gateway_lost:
                raise response.error or Internal(f"an answer failed: {response.reason}")
            case ResponseDone(response):
                for item in response.items:
                    await call.delete(item.id)
                return False
            case _:
                pass
    raise Unavailable("the conversation has ended")
