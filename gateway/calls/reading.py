"""What an order brings, checked against what the stages tell and decoded for them."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from antiphon.conversation import Conversation, with_recordings_alone
from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import InvalidArgument
from antiphon.v1 import stage_pb2
from gateway.calls.order import Order
from gateway.calls.tools import check_tools
from gateway.fleet.accepted import Accepted
from gateway.media.attachments import read_conversation
from gateway.media.options_in import OptionsByRole, check_options, read_options
from gateway.media.remote import UrlFetcher


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


async def read_order(
    order: Order,
    reader: stage_pb2.DescribeResponse,
    accepted: Accepted,
    config: GatewayConfig,
    fetcher: UrlFetcher,
) -> tuple[Conversation, OptionsByRole]:
    """The conversation for the stage that reads it, and the options for each that reads some.

    Nothing is decoded before all that can be has been checked. Raises `InvalidArgument` and
    `NotImplementedYet` with the field, `Unavailable` while an option may be that of a stage
    that was never reached.
    """
    accepted.check_sampling(order.sampling)
    readers = accepted.option_readers(order.options.keys())
    check_options(order.options, readers, config, recordings=len(order.attachments.recordings))
    check_tools(order, reader, config)
    messages = order.messages
    if order.recordings_alone or config.recordings_alone:
        messages = with_recordings_alone(messages)
    conversation = await read_conversation(
        messages, order.attachments, reader, config, fetcher, order.tools
    )
    conversation = structs.replace(
        conversation, tools=order.tools, tool_choice=order.tool_choice, template=order.template
    )
    samples = sum(map(len, conversation.recordings))
    taken_s = samples / reader.input_sample_rate_hz if samples else 0.0
    return conversation, await read_options(order.options, readers, config, taken_s=taken_s)
