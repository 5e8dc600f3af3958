"""Shares the capacity for conversations and their memory fairly among API keys. This module
performs no I/O.

If there is no room for another conversation or for more data, a conversation is ended to make room.
It belongs to the key that uses the most, and it is the one that has been idle the longest. A key
can't take from another key that uses no more than itself, so two keys can't keep taking from each
other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from antiphon.errors import AntiphonError, ResourceExhausted
from antiphon_gateway.admission.byte_budget import BudgetExceeded, ByteBudget, Holder

RETRY_AFTER_S = 1.0


def never_busy() -> bool:
    """Always return False. This is the default for a conversation that hasn't started yet."""
    return False


class ConversationShares:
    """The shares of all conversations. Their memory belongs to the gateway's `memory`."""

    def __init__(self, max_conversations: int, memory: ByteBudget) -> None:
        self.memory = memory
        self._max_conversations = max_conversations
        self._held: dict[ConversationShare, None] = {}

    @property
    def open(self) -> int:
        """The number of conversations with a share."""
        return len(self._held)

    def take(self, owner: str, end: Callable[[AntiphonError], None]) -> ConversationShare:
        """Return a share for a new conversation of a key. `end` is called if this conversation has
        to make room for another one.

        Raises `ResourceExhausted` if there is no room for it.
        """

        def missing() -> int:
            return self.open + 1 - self._max_conversations

        if not self._free(owner, 1, missing, lambda share: 1):
            raise ResourceExhausted(
                f"{self.open} conversations are already open, which is the maximum "
                "(gateway.conversations.max_conversations)",
                retry_after_s=RETRY_AFTER_S,
            )
        share = ConversationShare(self, owner, end)
        self._held[share] = None
        return share

    def check(self, owner: str, more_bytes: int) -> None:
        """Make room for additional bytes. Raises `ResourceExhausted` if that isn't possible."""

        if more_bytes <= 0:
            return
        holder = Holder.CONVERSATIONS
        try:
            self.memory.make_room(holder, more_bytes)
        except BudgetExceeded as full:
            missing = partial(self.memory.missing, holder, more_bytes)
            if not self._free(owner, more_bytes, missing, lambda share: share.size_bytes):
                raise ResourceExhausted(
                    f"the conversations use {self.memory.held(holder)} bytes in total, and "
                    f"{more_bytes} more bytes are not available: {full.message}; try again, or "
                    "delete items",
                    retry_after_s=RETRY_AFTER_S,
                ) from full

    def forget(self, share: ConversationShare) -> None:
        """Stop counting a share. This can be called more than once."""
        self._held.pop(share, None)

    def _free(
        self,
        owner: str,
        more: int,
        missing: Callable[[], int],
        amount_of: Callable[[ConversationShare], int],
    ) -> bool:
        """End conversations of keys that use more than `owner` would, until there is enough room.

        Returns whether there is enough room. If that couldn't be achieved by ending conversations,
        no conversation is ended.
        """
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
    """The resources of one conversation. The conversation can be ended only while it is idle, that
    is, while `is_busy` returns False.
    """

    def __init__(
        self, shares: ConversationShares, owner: str, end: Callable[[AntiphonError], None]
    ) -> None:
        self.owner = owner
        self.is_busy: Callable[[], bool] = never_busy
        self.active_at = shares.memory.clock()
        self._shares = shares
        self._end = end
        self._lease = shares.memory.lease(Holder.CONVERSATIONS)
        # This determines which conversation has to end.
        self._lease.keep()

    @property
    def size_bytes(self) -> int:
        """The number of bytes that the conversation keeps."""
        return self._lease.size_bytes

    def active(self) -> None:
        """Record that the client has sent something."""
        self.active_at = self._shares.memory.clock()

    def check(self, more_bytes: int) -> None:
        """Make room for additional bytes. Raises `ResourceExhausted` if that isn't possible."""
        self._shares.check(self.owner, more_bytes)

    @property
    def free_bytes(self) -> int:
        """The number of bytes that can be used without taking any from others. This can be
        negative.
        """
        return -self._shares.memory.missing(Holder.CONVERSATIONS, 0)

    def resize(self, size_bytes: int) -> None:
        """Record how many bytes the conversation currently keeps. Has no effect once the share is
        closed.
        """
        self._lease.resize(size_bytes)

    def give_way(self) -> None:
        """Release the share and end the conversation."""
        self.close()
        self._end(
            ResourceExhausted(
                "the conversation was the one that had been idle longest, and was closed to "
                "make room for another API key; open it again",
                retry_after_s=RETRY_AFTER_S,
            )
        )

    def close(self) -> None:
        """Release the share. This can be called more than once."""
        self._lease.close()
        self._shares.forget(self)
