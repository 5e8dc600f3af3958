"""From what a client asked for to a running call, the same for every protocol."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from antiphon.conversation import Message
from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import NotFound
from antiphon.sampling import SamplingRequest
from antiphon.segment import ChunkPolicy, Delivery
from gateway.calls.call import Call
from gateway.calls.calls import Calls
from gateway.calls.request import AUDIO, SpeechRequest
from gateway.fleet.stages import Stages
from gateway.media.attachments import Attachments, read_conversation

INPUT_STAGE = ""
"""Stands in `Order.sampling` for the stage that reads the client's input."""


@dataclass(frozen=True, slots=True)
class Order:
    """A request whose attachments are not read and whose voice is not checked yet.

    `model` may be empty: the only one. `voice_field` names the voice in errors.
    """

    model: str
    messages: tuple[Message, ...]
    attachments: Attachments
    outputs: frozenset[str]
    voice: str
    voice_field: str
    sampling: Mapping[str, SamplingRequest]
    delivery: Delivery | None
    chunk_policy: ChunkPolicy | None
    timeout_s: float = math.inf


class Speech:
    """Answers orders with calls."""

    def __init__(self, stages: Stages, calls: Calls, config: GatewayConfig) -> None:
        self.stages = stages
        self._calls = calls
        self._config = config

    @asynccontextmanager
    async def answer(self, order: Order) -> AsyncIterator[Call]:
        """The running call that answers an order, counted in for as long as it is open.

        Raises `NotFound` for another model, `ResourceExhausted` when there are too
        many requests, `Unavailable` when a stage is down, `InvalidArgument` for a
        voice or an attachment that will not do, `NotImplementedYet` for a kind of
        attachment that the model does not take.
        """
        with self._calls.admit():
            self.check_model(order.model)
            lineup = self.stages.line_up(order.outputs)
            voice = ""
            if AUDIO in order.outputs:
                voice = lineup.choose_voice(order.voice, field=order.voice_field)
            reader = lineup.input_member
            request = SpeechRequest(
                conversation=await read_conversation(
                    order.messages, order.attachments, reader.description, self._config
                ),
                field_by_input=order.attachments.field_by_input(),
                outputs=order.outputs,
                voice=voice,
                sampling={role or reader.role: each for role, each in order.sampling.items()},
                delivery=order.delivery,
                chunk_policy=order.chunk_policy,
                timeout_s=order.timeout_s,
            )
            # Attachments may be large, and the call may be long: it alone keeps what it needs.
            del order
            running = self._calls.run(request, lineup)
            del request
            async with running as call:
                yield call

    @property
    def closing(self) -> bool:
        """Whether the gateway was told to stop."""
        return self._calls.closing

    def check_open(self) -> None:
        """Raise `Unavailable` when the gateway was told to stop."""
        self._calls.check_open()

    def check_model(self, name: str) -> None:
        """Raise `NotFound` unless the name is empty or the served model's."""
        served = self.stages.model_name()
        if name not in ("", served):
            raise NotFound(f"no model {name!r}; there is: {served}", field="model")
