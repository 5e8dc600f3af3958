"""A request as admission, sessions and failover pass it on: parsed, checked and decoded."""

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
    """Do nothing when a stage is done."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """What every attempt to answer a request starts from.

    The `order` has its instruction as an option; its files are gone unless it is a turn of a
    conversation, which keeps them. It was checked against the stages of `lineup`, whose `voice` it
    names. `options` are what each stage gets. `field_names` are the client's names of what errors
    call otherwise, files included. What a turn refers to counts in its conversation.
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
        """About how many bytes it holds, decoded ones included."""
        own_bytes = 0 if self.is_turn else self.order.size_bytes
        options = (value for each in self.options.values() for value in each.values())
        decoded = sum(each.nbytes for each in options if isinstance(each, np.ndarray))
        return own_bytes + self.media.size_bytes + decoded

    def seed(self, attempt: AnswerAttempt) -> int:
        """What stages without a seed of their own draw by in an attempt."""
        return self.order.drawn_seed if attempt.drawn_seed is None else attempt.drawn_seed

    def conversation(self, sent: SentRecordings, lineup: Lineup) -> Conversation:
        """What the reading stage gets in a session on these stages that was `sent` recordings; see
        `RequestMedia.conversation`."""
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
    """One attempt to have a prepared request answered: what differs between two of them.

    It has `deadline_s` from now on, and the number `choice` among several answers. It does not run
    on replicas that are `avoided`, and on the `preferred` ones where these have room. It draws by
    `drawn_seed` where the request has no seed (None: the request's own), and goes on from a
    `history`. `on_freed` receives the role of each stage that is done with it.
    """

    deadline_s: float = math.inf
    choice: int = 0
    avoided: Collection[Replica] = NONE_AVOIDED
    preferred: Assignment | None = None
    drawn_seed: int | None = None
    history: History | None = None
    on_freed: Callable[[str], None] = _ignore
