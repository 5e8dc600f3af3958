"""A request that has been parsed, validated and decoded. This is the form that admission, sessions
and failover use.
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
    """Do nothing when a stage is finished."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that can be used to start any number of attempts to answer it.

    In `order`, the instruction has been converted to an option. The order doesn't contain any
    files, unless it is a turn of a conversation, which keeps its files. It was validated against
    the stages of `lineup`, and its voice is one that these stages have. `options` contains what
    each stage receives. `field_names` maps field names in error messages to those used by the
    client, including the field names of files. The attachments of a turn count towards the memory
    of its conversation.
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
        """The approximate size in bytes, including decoded data."""
        own_bytes = 0 if self.is_turn else self.order.size_bytes
        options = (value for each in self.options.values() for value in each.values())
        decoded = sum(each.nbytes for each in options if isinstance(each, np.ndarray))
        return own_bytes + self.media.size_bytes + decoded

    def seed(self, attempt: AnswerAttempt) -> int:
        """Return a seed for stages that don't have one of their own."""
        return self.order.drawn_seed if attempt.drawn_seed is None else attempt.drawn_seed

    def conversation(self, sent: SentRecordings, lineup: Lineup) -> Conversation:
        """Return the conversation for the stage that reads the messages. Recordings in `sent` have
        already been sent in the same session.

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
    """An attempt to answer a prepared request. It contains the settings that can differ between
    attempts.

    The attempt must end within `deadline_s` seconds. If there are several answers, `choice` is the
    number of this one. Replicas in `avoided` aren't used, while replicas in `preferred` are used if
    they have free slots. If `drawn_seed` is set, it replaces the request's own drawn seed. If
    `history` is set, the attempt continues after it. `on_freed` is called with the role of each
    stage that has finished its part.
    """

    deadline_s: float = math.inf
    choice: int = 0
    avoided: Collection[Replica] = NONE_AVOIDED
    preferred: Assignment | None = None
    drawn_seed: int | None = None
    history: History | None = None
    on_freed: Callable[[str], None] = _ignore
