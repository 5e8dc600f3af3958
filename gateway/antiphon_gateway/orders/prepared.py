"""A request that has been parsed, validated and decoded. Admission, sessions and failover pass it
on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
from msgspec import structs

from antiphon.values.conversation import Conversation
from antiphon.values.history import History
from antiphon_gateway.fleet.assignment import Assignment
from antiphon_gateway.fleet.fleet import NONE_AVOIDED
from antiphon_gateway.fleet.lineup import Lineup
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.media.options_in import OptionsByRole
from antiphon_gateway.media.request_media import RequestMedia
from antiphon_gateway.media.sent_recordings import SentRecordings
from antiphon_gateway.orders.order import Order


def _ignore(_: str) -> None:
    """Do nothing when a stage has finished."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """The starting point for every attempt to answer a request.

    The `order` contains its instruction as an option. It contains no files, unless it is a turn of
    a conversation, which keeps them. It was validated against the stages of `lineup`, and its voice
    is one of theirs. `options` are what each stage receives. `field_names` maps the names in error
    messages to those of the client, including files. The attachments of a turn are accounted for in
    its conversation.
    """

    order: Order
    lineup: Lineup
    voice: str
    media: RequestMedia
    options: OptionsByRole
    field_names: Mapping[str, str]
    is_turn: bool = False

    @property
    def size_bytes(self) -> int:
        """Return the approximate size in bytes, including decoded data."""
        own_bytes = 0 if self.is_turn else self.order.size_bytes
        options = (value for each in self.options.values() for value in each.values())
        decoded = sum(each.nbytes for each in options if isinstance(each, np.ndarray))
        return own_bytes + self.media.size_bytes + decoded

    def seed(self, attempt: AnswerAttempt) -> int:
        """Return the seed that stages without a seed of their own use in an attempt."""
        return self.order.drawn_seed if attempt.drawn_seed is None else attempt.drawn_seed

    def conversation(self, sent: SentRecordings, lineup: Lineup) -> Conversation:
        """Return what the stage that reads the messages receives, in a session on these stages that
        was `sent` recordings.

        See `RequestMedia.conversation`.
        """
        order = self.order
        keeps = order.recordings_alone and lineup.input_member.description.keeps_recordings
        return structs.replace(
            self.media.conversation(order.messages, sent, keeps=keeps),
            tools=order.tools,
            tool_choice=order.tool_choice,
            template=order.template,
        )


@dataclass(frozen=True, slots=True)
class AnswerAttempt:
    """An attempt to answer a prepared request. It contains what may differ between two attempts.

    It must end within `deadline_s` seconds. `choice` is its number among several answers. It does
    not use replicas that are in `avoided`, and uses those in `preferred` if they have free slots.
    If the request has no seed, `drawn_seed` is used. If it is None, the seed of the request
    applies. The attempt continues from a `history`. `on_freed` is called with the role of each
    stage that has finished its part.
    """

    deadline_s: float = math.inf
    choice: int = 0
    avoided: Collection[Replica] = NONE_AVOIDED
    preferred: Assignment | None = None
    drawn_seed: int | None = None
    history: History | None = None
    on_freed: Callable[[str], None] = _ignore
