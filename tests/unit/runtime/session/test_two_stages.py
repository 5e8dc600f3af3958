"""Credit, priming and look-ahead between two stages, in any order of things."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.runtime.session.instructions import Report
from antiphon.runtime.session.states import State
from antiphon.values.segment import ChunkPolicy, Delivery
from antiphon_testkit.qwen3_omni.fake_engine import SAMPLES_PER_FRAME
from tests.unit.runtime.session.two_stages import FRAMES, KEY, POLICY, WINDOWS, TwoStages


def bound(windows: dict[str, int], policy: ChunkPolicy) -> int:
    """Frames that the talker may be ahead of the client.

    The audio window; what one code2wav step may add to it, which is what can lie in
    front of it; and what the codes window lets the talker make behind that.
    """
    biggest = max(policy.first, *policy.ramp, policy.steady)
    return -(-windows["audio"] // SAMPLES_PER_FRAME) + 2 * (windows["codes"] + biggest)


def test_paused_client_stops_both_engines_and_gets_everything_later() -> None:
    stages = TwoStages(FRAMES, WINDOWS, policy=POLICY)
    stages.run(client=False)
    made = stages.talking.made[KEY]
    assert 0 < made <= bound(WINDOWS, POLICY) < FRAMES
    assert stages.talker.table.held_segments == stages.code2wav.table.held_segments == 1
    assert not stages.talker.rounds.steppable
    assert not stages.code2wav.rounds.steppable
    stages.run(client=True)
    assert stages.samples() == np.repeat(np.arange(1.0, FRAMES + 1), SAMPLES_PER_FRAME).tolist()
    for host in (stages.talker, stages.code2wav):
        assert [type(each) for each in host.ended] == [Report]
        assert host.table.state("s") is State.PARKED
        assert host.table.open_segments == host.table.held_segments == 0


def test_paused_client_stops_nothing_when_there_are_no_windows() -> None:
    stages = TwoStages(FRAMES, {}, policy=POLICY)
    stages.run(client=False)
    assert stages.talking.made[KEY] == FRAMES > bound(WINDOWS, POLICY)


@pytest.mark.parametrize("windows", [{"codes": 8}, {"audio": WINDOWS["audio"]}])
def test_one_window_alone_bounds_its_own_edge(windows: dict[str, int]) -> None:
    stages = TwoStages(FRAMES, windows, policy=POLICY)
    stages.run(client=False)
    heard = sum(len(chunk.tensors["samples"]) for chunk in stages.code2wav.sent if chunk.tensors)
    if "audio" in windows:
        # The talker is free; code2wav stops, by a step at most, where the client has.
        assert stages.talking.made[KEY] == FRAMES
        assert stages.code2wav.table.held_segments == 1
        assert heard <= windows["audio"]
    else:
        # Code2wav is free and takes everything at once, so that the talker is never held.
        assert heard == FRAMES * SAMPLES_PER_FRAME


@pytest.mark.parametrize("edges", [("codes",), ("audio",), ("codes", "audio")])
@pytest.mark.parametrize("window", [1, 8])
def test_chunks_larger_than_the_window_and_whole_delivery_go_through(
    edges: tuple[str, ...], window: int
) -> None:
    windows = {"codes": window, "audio": window}
    policy = ChunkPolicy(first=64, ramp=(), steady=64)
    for delivery in ({}, dict.fromkeys(edges, Delivery.WHOLE)):
        stages = TwoStages(FRAMES, windows, policy=policy, delivery=delivery)
        stages.run(client=True)
        assert stages.frames_taken == FRAMES
        assert stages.heard[-1].segment_finished


POLICIES = st.builds(
    ChunkPolicy,
    first=st.integers(1, 9),
    ramp=st.lists(st.integers(1, 9), max_size=3).map(tuple),
    steady=st.integers(1, 20),
)


@settings(max_examples=150)
@given(
    frames=st.integers(0, 60),
    window=st.integers(1, 12),
    ahead=st.integers(1, 80),
    policy=POLICIES,
    order=st.lists(st.integers(0, 6), min_size=50, max_size=300),
)
def test_nothing_is_lost_or_stuck_and_the_bound_holds_in_any_order(
    frames: int, window: int, ahead: int, policy: ChunkPolicy, order: list[int]
) -> None:
    windows = {"codes": window, "audio": ahead}
    stages = TwoStages(frames, windows, policy=policy)
    allowed = bound(windows, policy)
    for number in order:
        stages.moves[number]()
        assert stages.talking.made[KEY] - stages.frames_taken <= allowed
    stages.run(client=False)
    assert stages.talking.made[KEY] - stages.frames_taken <= allowed
    stages.run(client=True)
    assert stages.samples() == np.repeat(np.arange(1.0, frames + 1), SAMPLES_PER_FRAME).tolist()
    assert [chunk.segment_finished for chunk in stages.heard].count(True) == 1
    assert stages.code2wav.table.state("s") is State.PARKED


@settings(max_examples=60)
@given(
    window=st.integers(1, 12),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    order=st.lists(st.integers(0, 6), max_size=100),
)
def test_what_primes_uses_no_credit_and_comes_first_in_any_order(
    window: int, sizes: list[int], order: list[int]
) -> None:
    reference = [np.full((size, 2), 3, np.uint16) for size in sizes]
    windows = {"codes": window, "audio": 4}
    stages, plain = (TwoStages(30, windows, policy=POLICY, reference=r) for r in (reference, ()))
    stages.run(client=False)
    plain.run(client=False)
    # The talker stops where one without a reference does.
    assert stages.talking.made[KEY] == plain.talking.made[KEY]
    for number in order:
        stages.moves[number]()
    stages.run(client=True)
    primed = np.arange(1.0, 31) + 3 * sum(sizes)
    assert stages.samples() == np.repeat(primed, SAMPLES_PER_FRAME).tolist()
    assert stages.talker.table.tally.positions == {"codes": 30}


@pytest.mark.parametrize("look_ahead", [1, 3, 20])
def test_consumer_makes_whole_groups_when_chunks_end_its_look_ahead_later(look_ahead: int) -> None:
    stages = TwoStages(40, {"codes": 100, "audio": 10_000}, policy=POLICY, look_ahead=look_ahead)
    # The consumer is quicker than the producer: it takes each chunk before the next is made.
    stages.run(client=True)
    sizes = [len(chunk.tensors["codes"]) for chunk in stages.heard if chunk.tensors]
    made, boundaries = 40 - look_ahead, (1, 3, 7, 12, 17, 22, 27, 32, 37)
    whole = [boundary for boundary in boundaries if boundary <= made]
    assert np.cumsum(sizes).tolist() == [*whole, 40]
    assert stages.samples() == np.repeat(np.arange(1.0, 41), SAMPLES_PER_FRAME).tolist()


@settings(max_examples=150)
@given(
    frames=st.integers(0, 60),
    window=st.integers(1, 12),
    ahead=st.integers(1, 80),
    look_ahead=st.integers(1, 20),
    policy=POLICIES,
    order=st.lists(st.integers(0, 6), max_size=200),
)
def test_nothing_is_stuck_when_windows_are_smaller_than_the_look_ahead(
    frames: int, window: int, ahead: int, look_ahead: int, policy: ChunkPolicy, order: list[int]
) -> None:
    windows = {"codes": window, "audio": ahead}
    stages = TwoStages(frames, windows, policy=policy, look_ahead=look_ahead)
    allowed = look_ahead + bound(windows, replace(policy, first=policy.first + look_ahead))
    for number in order:
        stages.moves[number]()
        assert stages.talking.made[KEY] - stages.frames_taken <= allowed
    stages.run(client=False)
    assert stages.talking.made[KEY] - stages.frames_taken <= allowed
    stages.run(client=True)
    assert stages.samples() == np.repeat(np.arange(1.0, frames + 1), SAMPLES_PER_FRAME).tolist()
    assert stages.code2wav.table.state("s") is State.PARKED
