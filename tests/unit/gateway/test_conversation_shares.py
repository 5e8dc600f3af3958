from __future__ import annotations

import pytest

from antiphon.errors import AntiphonError, ResourceExhausted
from antiphon_gateway.admission.byte_budget import SHARES, ByteBudget, Holder
from antiphon_gateway.conversations.shares import ConversationShare, ConversationShares


class Gateway:
    """Conversations of several keys, one opened a second after the other."""

    def __init__(self, conversations: int = 4, most_bytes: int = 100) -> None:
        self.now_s = 0.0
        limit_bytes = int(most_bytes / SHARES[Holder.CONVERSATIONS])
        self.memory = ByteBudget(limit_bytes, clock=lambda: self.now_s)
        self.shares = ConversationShares(conversations, self.memory)
        self.ended: list[str] = []

    def open(self, name: str) -> ConversationShare:
        """The first letter is the key."""
        self.now_s += 1.0

        def end(error: AntiphonError) -> None:
            assert isinstance(error, ResourceExhausted)
            self.ended.append(name)

        return self.shares.take(name[0], end)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def test_longest_idle_conversation_of_the_key_that_has_most_gives_way(gateway: Gateway) -> None:
    shares = {name: gateway.open(name) for name in ("a1", "b1", "a2", "a3")}
    gateway.now_s += 1.0
    shares["a1"].active()
    gateway.open("c1")
    assert gateway.ended == ["a2"]
    assert gateway.shares.open == 4


def test_a_key_takes_from_none_that_has_no_more_than_it_would_have(gateway: Gateway) -> None:
    for name in ("a1", "a2", "b1", "b2"):
        gateway.open(name)
    for name in ("a3", "b3"):
        with pytest.raises(ResourceExhausted, match=r"gateway\.conversations\.max_conversations"):
            gateway.open(name)
    gateway.open("c1")
    assert gateway.ended == ["a1"]
    # Two, one and one: a has as many as b would lose.
    with pytest.raises(ResourceExhausted):
        gateway.open("a4")


def test_without_keys_nothing_gives_way() -> None:
    gateway = Gateway()
    for _ in range(4):
        gateway.shares.take("", lambda _: gateway.ended.append("one"))
    with pytest.raises(ResourceExhausted):
        gateway.shares.take("", lambda _: None)
    assert not gateway.ended


def test_busy_conversations_stay(gateway: Gateway) -> None:
    shares = [gateway.open(f"a{number}") for number in range(4)]
    for share in shares[:3]:
        share.is_busy = lambda: True
    gateway.open("b1")
    assert gateway.ended == ["a3"]
    with pytest.raises(ResourceExhausted):
        gateway.open("c1")


def test_bytes_are_shared_as_conversations_are(gateway: Gateway) -> None:
    first, second, other = (gateway.open(name) for name in ("a1", "a2", "b1"))
    first.resize(50)
    second.resize(40)
    other.check(10)
    other.resize(10)
    gateway.now_s += 1.0
    first.active()
    other.check(30)
    assert gateway.ended == ["a2"]
    assert gateway.memory.held_bytes == 60
    # 50 of a, and 10 of b, which would have 60 then.
    with pytest.raises(ResourceExhausted, match=r"gateway\.limits\.max_memory_bytes"):
        other.check(50)
    assert gateway.ended == ["a2"], "none ends in vain"
    # What has ended keeps nothing, whatever it still does.
    second.resize(1000)
    second.close()
    assert gateway.memory.held_bytes == 60


def test_several_give_way_when_one_is_not_enough(gateway: Gateway) -> None:
    for number in (1, 2, 3):
        gateway.open(f"a{number}").resize(30)
    gateway.open("b1").check(45)
    assert gateway.ended == ["a1", "a2"]


def test_shares_that_close_make_room(gateway: Gateway) -> None:
    shares = [gateway.open(f"a{number}") for number in range(4)]
    shares[0].resize(100)
    with pytest.raises(ResourceExhausted):
        shares[1].check(1)
    shares[0].close()
    shares[0].close()
    shares[1].check(100)
    assert gateway.shares.open == 3


def test_requests_kept_for_failover_give_way_before_a_conversation_does(gateway: Gateway) -> None:
    first, other = gateway.open("a1"), gateway.open("b1")
    first.resize(90)
    kept = gateway.memory.lease(Holder.ANSWERING)
    kept.resize(80)
    kept.spare(lambda: gateway.ended.append("kept"))
    other.check(10)
    assert gateway.ended == ["kept"]
    assert gateway.memory.held_bytes == 90
