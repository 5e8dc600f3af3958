from __future__ import annotations

import asyncio
from contextlib import ExitStack
from fractions import Fraction

import pytest

from antiphon.deployment.schema import GatewayConfig
from antiphon_gateway.admission.byte_budget import (
    SHARES,
    SILENT_S,
    BudgetExceeded,
    ByteBudget,
    ByteLease,
    Holder,
)
from antiphon_gateway.endpoints.http.body import FREE_BYTES, read_body
from antiphon_gateway.endpoints.http.json_body import WholeBody

LIMIT = 40
"""So that uploads have 10 bytes, conversations 20, and all but unread answers 35."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def refused() -> list[Holder]:
    """The holders that were refused bytes or evicted."""
    return []


@pytest.fixture
def budget(clock: Clock, refused: list[Holder]) -> ByteBudget:
    return ByteBudget(LIMIT, count=refused.append, clock=clock)


class Client:
    """Holds something in a budget, and notes when it had to give way."""

    def __init__(
        self, budget: ByteBudget, stack: ExitStack, holder: Holder = Holder.UPLOADS
    ) -> None:
        self.evicted = False
        self.lease: ByteLease = stack.enter_context(budget.lease(holder, self.note))

    def note(self) -> None:
        self.evicted = True


def kept(budget: ByteBudget, stack: ExitStack, size: int) -> Client:
    """A request that is kept for failover."""
    client = Client(budget, stack, Holder.ANSWERING)
    client.lease.resize(size)
    client.lease.spare(client.note)
    return client


def test_bytes_are_free_again_when_leases_shrink_or_end(budget: ByteBudget) -> None:
    with ExitStack() as stack:
        client = Client(budget, stack)
        client.lease.moved(7)
        client.lease.moved(4)
        assert (budget.held_bytes, budget.held(Holder.UPLOADS)) == (4, 4)
    assert budget.held_bytes == 0
    client.lease.resize(5)
    assert budget.held_bytes == 0, "a closed lease has nothing"


def test_a_lease_that_does_not_fit_is_refused_when_all_others_move(
    budget: ByteBudget, refused: list[Holder]
) -> None:
    with ExitStack() as stack:
        one, other = Client(budget, stack), Client(budget, stack)
        one.lease.moved(6)
        with pytest.raises(BudgetExceeded, match=r"gateway\.limits\.max_memory_bytes") as caught:
            other.lease.moved(5)
        assert caught.value.retryable
        assert refused == [Holder.UPLOADS]
        other.lease.moved(4)
        assert (budget.held_bytes, one.evicted) == (10, False)


def test_the_longest_silent_gives_way_first_and_no_more_than_needed(
    budget: ByteBudget, clock: Clock, refused: list[Holder]
) -> None:
    with ExitStack() as stack:
        eldest, elder, young = (Client(budget, stack) for _ in range(3))
        for client in (elder, eldest):
            client.lease.moved(5)
        elder.lease.moved(5)
        clock.now_s += SILENT_S + 0.1
        young.lease.moved(5)
        assert [each.evicted for each in (eldest, elder, young)] == [True, False, False]
        assert budget.held_bytes == 10
        assert refused == [Holder.UPLOADS]
        with pytest.raises(BudgetExceeded):
            eldest.lease.moved(6)
        young.lease.moved(10)
        assert elder.evicted
        assert budget.held_bytes == 10
    assert budget.held_bytes == 0


def test_none_gives_way_in_vain(budget: ByteBudget, clock: Clock) -> None:
    with ExitStack() as stack:
        unread = Client(budget, stack, Holder.UNREAD)
        silent, done, new = (Client(budget, stack) for _ in range(3))
        unread.lease.moved(10)
        silent.lease.moved(4)
        done.lease.moved(6)
        done.lease.keep()
        clock.now_s += SILENT_S + 0.1
        with pytest.raises(BudgetExceeded):
            new.lease.moved(5)
        assert not silent.evicted
        # Bytes of another kind would not help: uploads have all of their share.
        new.lease.moved(4)
        assert (silent.evicted, unread.evicted) == (True, False)


def test_who_has_done_its_part_does_not_give_way(budget: ByteBudget, clock: Clock) -> None:
    with ExitStack() as stack:
        done, silent, new = (Client(budget, stack) for _ in range(3))
        done.lease.moved(4)
        done.lease.keep()
        silent.lease.moved(4)
        clock.now_s += SILENT_S + 0.1
        new.lease.moved(6)
        assert (done.evicted, silent.evicted) == (False, True)
        with pytest.raises(BudgetExceeded):
            new.lease.moved(7)
        budget.clear()
        assert (done.evicted, new.evicted) == (False, True)
        assert budget.held_bytes == 4


def test_shutdown_evicts_nothing_but_uploads_of_clients(budget: ByteBudget) -> None:
    with ExitStack() as stack:
        upload, unread = Client(budget, stack), Client(budget, stack, Holder.UNREAD)
        fetched = Client(budget, stack)
        fetched.lease.of_client = False
        budget.clear()
        assert [each.evicted for each in (upload, unread, fetched)] == [True, False, False]


@pytest.mark.parametrize("holder", [each for each in Holder if each is not Holder.ANSWERING])
def test_each_kind_of_holder_has_its_share(budget: ByteBudget, holder: Holder) -> None:
    with ExitStack() as stack:
        client = Client(budget, stack, holder)
        most = int(SHARES[holder] * LIMIT)
        client.lease.take(most)
        assert budget.missing(holder, 1) == 1
        with pytest.raises(BudgetExceeded, match="their share"):
            client.lease.take(most + 1)
        assert budget.held(holder) == most


def test_shares_exceed_the_whole_and_the_whole_is_bounded(budget: ByteBudget) -> None:
    assert sum(SHARES.values()) > Fraction(1)
    with ExitStack() as stack:
        upload, conversation, waiting, unread = (
            Client(budget, stack, each)
            for each in (Holder.UPLOADS, Holder.CONVERSATIONS, Holder.WAITING, Holder.UNREAD)
        )
        conversation.lease.take(20)
        waiting.lease.take(10)
        upload.lease.take(5)
        with pytest.raises(BudgetExceeded, match="have used up"):
            upload.lease.take(6)
        unread.lease.take(5)
        with pytest.raises(BudgetExceeded):
            unread.lease.take(6)
        assert budget.held_bytes == LIMIT


def test_requests_kept_for_failover_give_way_to_others_the_oldest_first(
    budget: ByteBudget, refused: list[Holder]
) -> None:
    with ExitStack() as stack:
        first, second, third = (kept(budget, stack, 11) for _ in range(3))
        new = Client(budget, stack)
        new.lease.moved(4)
        assert [each.evicted for each in (first, second, third)] == [True, False, False]
        # It is asked for once more just now.
        second.lease.keep()
        conversation = Client(budget, stack, Holder.CONVERSATIONS)
        conversation.lease.take(19)
        assert [each.evicted for each in (second, third)] == [False, True]
        assert refused == [], "they are neither refused nor cut off"
        assert first.lease.closed


def test_what_goes_on_from_one_kind_to_another_is_counted_once(budget: ByteBudget) -> None:
    with ExitStack() as stack:
        lease = Client(budget, stack).lease
        lease.take(8)
        for holder in (Holder.WAITING, Holder.ANSWERING):
            lease.move(holder)
            assert (budget.held(holder), budget.held_bytes) == (8, 8)
    assert budget.held_bytes == 0


async def test_a_body_that_has_come_whole_does_not_give_way(
    budget: ByteBudget, clock: Clock
) -> None:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b" " * (FREE_BYTES + 6), "more_body": False}

    with ExitStack() as stack:
        done, new = Client(budget, stack), Client(budget, stack)
        unbounded = asyncio.timeout(None)
        body = WholeBody(GatewayConfig().limits.max_body_values)
        await read_body({"headers": []}, receive, GatewayConfig(), done.lease, unbounded, body)
        clock.now_s += SILENT_S + 0.1
        with pytest.raises(BudgetExceeded):
            new.lease.moved(5)
        assert (done.evicted, budget.held_bytes) == (False, 6)
