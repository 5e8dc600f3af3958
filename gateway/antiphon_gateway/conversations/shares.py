"""Conversations and the bytes that they keep, shared by API keys. Pure.

When there is no room for another conversation, or for more bytes, the longest idle conversation of
the key that has most of them ends. A key never takes from one that has no more than itself, so two
keys do not take from each other in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from antiphon.errors import AntiphonError, ResourceExhausted
from antiphon_gateway.admission.byte_budget import BudgetExceeded, ByteBudget, Holder

RETRY_AFTER_S = 1.0


def never_busy() -> bool:
    """Of a conversation that has not begun."""
    return False


class ConversationShares:
    """What all conversations take; their bytes are those of the gateway's `memory`."""

    def __init__(self, max_conversations: int, memory: ByteBudget) -> None:
        self.memory = memory
        self._max_conversations = max_conversations
        self._held: dict[ConversationShare, None] = {}

    @property
    def open(self) -> int:
        """Conversations that have a share."""
        return len(self._held)

    def take(self, owner: str, end: Callable[[AntiphonError], None]) -> ConversationShare:
        """A share of another conversation of a key. `end` is called when it has to give way.

        Raises `ResourceExhausted` when there is no room.
        """

        def missing() -> int:
            return self.open + 1 - self._max_conversations

        if not self._free(owner, 1, missing, lambda share: 1):
            raise ResourceExhausted(
                f"{self.open} conversations are open, which is the most "
                "(gateway.conversations.max_conversations)",
                retry_after_s=RETRY_AFTER_S,
            )
        share = ConversationShare(self, owner, end)
        self._held[share] = None
        return share

    def check(self, owner: str, more_bytes: int) -> None:
        """Make room for so many bytes more. Raises `ResourceExhausted` when there is none."""

        if more_bytes <= 0:
            return
        holder = Holder.CONVERSATIONS
        try:
            self.memory.make_room(holder, more_bytes)
        except BudgetExceeded as full:
            missing = partial(self.memory.missing, holder, more_bytes)
            if not self._free(owner, more_bytes, missing, lambda share: share.size_bytes):
                raise ResourceExhausted(
                    f"the conversations hold {self.memory.held(holder)} bytes together, and there "
                    f"is no room for {more_bytes} more: {full.message}; try again, or delete items",
                    retry_after_s=RETRY_AFTER_S,
                ) from full

    def forget(self, share: ConversationShare) -> None:
        """Count a share no more; further calls do nothing."""
        self._held.pop(share, None)

    def _free(
        self,
        owner: str,
        more: int,
        missing: Callable[[], int],
        amount_of: Callable[[ConversationShare], int],
    ) -> bool:
        """End conversations of keys that have more than `owner` would have, until nothing is
        missing; whether that is so. Ends none if it would not be enough."""
        giving: list[ConversationShare] = []
        found = 0
        amounts: Counter[str] = Counter()
        for share in self._held:
            amounts[share.owner] += amount_of(share)
        wanted = missing()
        while found < wanted:
            most = max(amounts.values(), default=0)
            idle = [
                share
                for share in self._held
                if amounts[share.owner] == most
                and share not in giving
                and amount_of(share)
                and not share.is_busy()
            ]
            if most <= amounts[owner] + more or not idle:
                return False
            longest = min(idle, key=lambda share: share.active_at)
            giving.append(longest)
            amounts[longest.owner] -= amount_of(longest)
            found += amount_of(longest)
        for share in giving:
            share.give_way()
        return True


class ConversationShare:
    """The resources of one conversation. Only an idle conversation, for which `is_busy` returns
    False, may be ended."""

    def __init__(
        self, shares: ConversationShares, owner: str, end: Callable[[AntiphonError], None]
    ) -> None:
        self.owner = owner
        self.is_busy: Callable[[], bool] = never_busy
        self.active_at = shares.memory.clock()
        self._shares = shares
        self._end = end
        self._lease = shares.memory.lease(Holder.CONVERSATIONS)
        # Which conversation gives way is decided here.
        self._lease.keep()

    @property
    def size_bytes(self) -> int:
        """What it keeps."""
        return self._lease.size_bytes

    def active(self) -> None:
        """The client has sent something."""
        self.active_at = self._shares.memory.clock()

    def check(self, more_bytes: int) -> None:
        """Make room for so many bytes more. Raises `ResourceExhausted` when there is none."""
        self._shares.check(self.owner, more_bytes)

    def resize(self, size_bytes: int) -> None:
        """It keeps so many bytes now; none once it is closed."""
        self._lease.resize(size_bytes)

    def give_way(self) -> None:
        """Give the share back and end the conversation."""
        self.close()
        self._end(
            ResourceExhausted(
                "the conversation was idle for longest, and gave way to that of another API key; "
                "open it again",
                retry_after_s=RETRY_AFTER_S,
            )
        )

    def close(self) -> None:
        """Give the share back; further calls do nothing."""
        self._lease.close()
        self._shares.forget(self)
