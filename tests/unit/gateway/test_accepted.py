from __future__ import annotations

import pytest

from antiphon.errors import InvalidArgument
from antiphon.v1 import stage_pb2
from antiphon.values.sampling import SamplingRequest
from antiphon_gateway.fleet.accepted import Accepted
from antiphon_gateway.fleet.lineup import Lineup, Member

GRAPH = (("input", "", "a"), ("x", "a", "b"), ("y", "b", "c"), ("audio", "c", ""))


def accepted(**samples: bool) -> Accepted:
    """What the stages accept that were reached, of the pipeline a, b, c."""
    edges = [stage_pb2.PipelineEdge(name=n, producer=p, consumer=c) for n, p, c in GRAPH]
    told = {role: stage_pb2.DescribeResponse(samples=each) for role, each in samples.items()}
    return Accepted(edges, told)


def test_sampling_stages_are_those_that_say_so_without_the_reader() -> None:
    assert accepted(a=True, b=False, c=True).sampling_stages == ("c",)
    unheard = accepted(a=True, b=False)
    assert (unheard.sampling_stages, unheard.sampling_fields) == ((), ("c",))


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"": SamplingRequest(seed=1)}, ""),
        ({"": SamplingRequest(top_p=0.5)}, "top_p"),
        ({"a": SamplingRequest(seed=1)}, "sampling.a"),
        ({"b": SamplingRequest()}, "sampling.b"),
        ({"c": SamplingRequest(top_k=1)}, ""),
        ({"d": SamplingRequest()}, "sampling.d"),
    ],
)
def test_sampling_is_refused_for_a_stage_that_does_not_sample(
    sampling: dict[str, SamplingRequest], field: str
) -> None:
    told = accepted(a=False, b=False, c=True)
    if not field:
        told.check_sampling(sampling)
        return
    with pytest.raises(InvalidArgument) as caught:
        told.check_sampling(sampling)
    assert caught.value.field == field


def test_a_session_goes_by_its_own_stages_and_by_the_fleet_for_the_rest() -> None:
    fleet = accepted(a=False, b=False, c=True)
    own = stage_pb2.DescribeResponse(samples=True)
    lineup = Lineup((Member("b", "here:1", own),), tuple(fleet.edges), frozenset())
    assert fleet.sampling_stages == ("c",)
    assert fleet.of_session(lineup).sampling_stages == ("b", "c")


def test_sampling_of_the_reader_is_given_once() -> None:
    told = accepted(a=True)
    told.check_sampling({"a": SamplingRequest(top_k=1)})
    with pytest.raises(InvalidArgument, match="once"):
        told.check_sampling({"": SamplingRequest(), "a": SamplingRequest(top_k=1)})
