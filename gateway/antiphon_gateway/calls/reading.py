"""What an order brings, checked against what the stages tell and decoded for them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from msgspec import structs

from antiphon.conversation import Conversation, is_recording_key, with_recordings_alone
from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import DeadlineExceeded, InvalidArgument
from antiphon.v1 import stage_pb2
from antiphon_gateway.calls.order import Order
from antiphon_gateway.calls.tools import check_tools
from antiphon_gateway.fleet.accepted import Accepted
from antiphon_gateway.media.attachments import MediaInput, read_conversation
from antiphon_gateway.media.options_in import OptionsByRole, check_options, read_options
from antiphon_gateway.media.sent_recordings import SentRecordings


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """What the stages get of an order; in it are `heard_s` seconds of recordings."""

    conversation: Conversation
    options: OptionsByRole
    heard_s: float

    @property
    def refers(self) -> bool:
        """Whether it tells recordings by their keys, which a stage may not know any more."""
        return any(map(is_recording_key, self.conversation.recordings))


def with_instruction(order: Order, accepted: Accepted) -> Order:
    """The order with its instruction as the option that it is.

    Raises `InvalidArgument` when that option is given too, and what `instructing_option` raises.
    """
    if order.instruction is None:
        return order
    name = accepted.instructing_option()
    if name in order.options:
        raise InvalidArgument(
            f"instruction: is the same as options.{name}; give one of them", field="instruction"
        )
    mine = order.field_names.get("instruction", "instruction")
    return replace(
        order,
        instruction=None,
        options={**order.options, name: order.instruction},
        field_names={**order.field_names, f"options.{name}": mine},
    )


def too_late() -> DeadlineExceeded:
    """The error for a request whose time is over before it could begin."""
    return DeadlineExceeded("the request's time was over before its attachments were read")


async def read_order(
    order: Order,
    reader: stage_pb2.DescribeResponse,
    accepted: Accepted,
    config: GatewayConfig,
    media: MediaInput,
    sent: SentRecordings,
    within_s: float,
) -> ReadOrder:
    """The conversation for the stage that reads it, and the options for each that reads some.

    Of recordings that were `sent` to it before go the keys, where it keeps them.

    Nothing is decoded before all that can be has been checked. Raises `InvalidArgument` and
    `NotImplementedYet` with the field, `Unavailable` while an option may be that of a stage
    that was never reached, `DeadlineExceeded` when it takes more than `within_s`.
    """
    accepted.check_sampling(order.sampling)
    readers = accepted.option_readers(order.options.keys())
    check_options(order.options, readers, config, recordings=len(order.attachments.recordings))
    check_tools(order, reader, config)
    messages, keeps = order.messages, False
    if order.recordings_alone or config.recordings_alone:
        messages, keeps = with_recordings_alone(messages), reader.keeps_recordings
    try:
        async with asyncio.timeout(within_s) as clock:
            conversation = await read_conversation(
                messages,
                order.attachments,
                reader,
                config,
                media,
                order.tools,
                sent if keeps else None,
                order.key,
            )
            conversation = structs.replace(
                conversation,
                tools=order.tools,
                tool_choice=order.tool_choice,
                template=order.template,
            )
            samples = sum(map(sent.length, conversation.recordings))
            heard_s = samples / reader.input_sample_rate_hz if samples else 0.0
            options = await read_options(
                order.options, readers, config, media.decoder, taken_s=heard_s, key=order.key
            )
    except TimeoutError as error:
        if not clock.expired():
            raise
        raise too_late() from error
    return ReadOrder(conversation, options, heard_s)
