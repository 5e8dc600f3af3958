"""Converts the events of a conversation to `ConverseResponse` messages. This module performs no
I/O.
"""

from __future__ import annotations

from dataclasses import replace

from antiphon.v1 import converse_pb2
from antiphon.values.live_conversation import (
    ConversationOpened,
    Item,
    ItemFetched,
    ResponseAudioDelta,
    SettingsUpdated,
)
from antiphon.wire.conversation import event_to_proto
from antiphon_gateway.conversations.events import ConversationEvent, ResponseSamples
from antiphon_gateway.conversations.items import HeardPart, item_bytes
from antiphon_gateway.conversations.settings import own_settings
from antiphon_gateway.endpoints.grpc.converse.settings import write_functions
from antiphon_gateway.media.audio_out import to_pcm16


def write_event(
    event: ConversationEvent, max_retrieved_bytes: int
) -> converse_pb2.ConverseResponse:
    """Return the message for an event. If an item is fetched, its samples are included unless they
    exceed the size limit.
    """
    match event:
        case ResponseSamples(response_id, item_id, samples, index):
            return event_to_proto(
                ResponseAudioDelta(response_id, item_id, to_pcm16(samples), index)
            )
        case ItemFetched(item) if item_bytes(item) <= max_retrieved_bytes:
            return event_to_proto(ItemFetched(_with_samples(item)))
        case ConversationOpened(settings=settings):
            message = event_to_proto(event)
            write_functions(own_settings(settings), message.begun.settings)
        case SettingsUpdated(settings):
            message = event_to_proto(event)
            write_functions(own_settings(settings), message.settings_changed.settings)
        case _:
            message = event_to_proto(event)
    return message


def _with_samples(item: Item) -> Item:
    parts = tuple(
        replace(each, pcm16=bytes(each.recording.pcm16)) if isinstance(each, HeardPart) else each
        for each in item.parts
    )
    return replace(item, parts=parts)
