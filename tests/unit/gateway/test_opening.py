from __future__ import annotations

from antiphon.values.sampling import SamplingRequest
from antiphon_gateway.orders.order import SEED_BITS, draw_seed
from antiphon_gateway.sessions.opening import with_seeds

ROLES = ("thinker", "talker", "code2wav")


def test_seed_is_drawn_once_for_all_roles_when_none_is_given() -> None:
    seeds = [with_seeds({}, ROLES, "thinker", draw_seed()) for _ in range(2)]
    drawn = [{settings.seed for settings in each.values()} for each in seeds]
    assert [len(each) for each in drawn] == [1, 1]
    assert drawn[0] != drawn[1]
    (seed,) = drawn[0]
    assert seed is not None
    assert 0 <= seed < 1 << SEED_BITS


def test_seed_of_the_input_stage_goes_to_all_that_have_none() -> None:
    given = {"thinker": SamplingRequest(seed=0), "talker": SamplingRequest(top_k=3, seed=8)}
    complete = with_seeds(given, ROLES, "thinker", draw_seed())
    assert {role: each.seed for role, each in complete.items()} == {
        "thinker": 0, "talker": 8, "code2wav": 0,
    }  # fmt: skip
    assert complete["talker"].top_k == 3
