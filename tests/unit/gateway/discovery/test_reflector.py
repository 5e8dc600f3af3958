"""EndpointSlices as endpoints, without an API."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_gateway.fleet.discovery.reflector import Reflector
from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint
from antiphon_gateway.fleet.discovery.slices import EndpointSlice
from antiphon_testkit.fake_kubernetes import endpoint

SERVICES = {"talker": "a-talker", "code2wav": "a-code2wav"}


def _slice(
    name: str, service: str, *endpoints: Any, family: str = "IPv4", ports: Any = None
) -> EndpointSlice:
    content = {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": ports,
    }
    return msgspec.json.decode(msgspec.json.encode(content), type=EndpointSlice)


def _reflector(*slices: EndpointSlice) -> Reflector:
    reflector = Reflector(SERVICES, 50051)
    reflector.replace(slices)
    return reflector


def test_endpoint_has_what_the_slice_tells_of_its_pod() -> None:
    told = endpoint("10.0.0.1", "pod-1", nodeName="node-7", zone="zone-b")
    assert _reflector(_slice("a", "a-talker", told)).endpoints() == {
        Endpoint("talker", "pod-1", "10.0.0.1:50051", "node-7", "zone-b")
    }


def test_endpoints_of_several_services_and_slices_are_told_together() -> None:
    reflector = _reflector(
        _slice("a", "a-talker", endpoint("10.0.0.1", "p1")),
        _slice("b", "a-talker", endpoint("10.0.0.2", "p2")),
        _slice("c", "a-code2wav", endpoint("10.0.0.3", "p3")),
        _slice("d", "another", endpoint("10.0.0.4", "p4")),
    )
    assert {(e.role, e.uid) for e in reflector.endpoints()} == {
        ("talker", "p1"),
        ("talker", "p2"),
        ("code2wav", "p3"),
    }


@pytest.mark.parametrize(
    ("ports", "port"),
    [
        ([{"name": "metrics", "port": 50052}, {"name": "grpc", "port": 50061}], 50061),
        ([{"name": "metrics", "port": 50052}], 50051),
        ([{"name": None, "port": 50061}], 50051),
        ([{"name": "grpc", "port": None}], 50051),
        (None, 50051),
    ],
)
def test_endpoint_is_at_the_port_that_its_slice_names(ports: Any, port: int) -> None:
    told = _slice("a", "a-talker", endpoint("10.0.0.1", "pod-1"), ports=ports)
    assert {each.address for each in _reflector(told).endpoints()} == {f"10.0.0.1:{port}"}


def test_a_pod_of_several_stages_is_an_endpoint_of_each_at_its_own_port() -> None:
    pod = endpoint("10.0.0.1", "pod-1")
    reflector = _reflector(
        _slice("a", "a-talker", pod, ports=[{"name": "grpc", "port": 50051}]),
        _slice("b", "a-code2wav", pod, ports=[{"name": "grpc", "port": 50061}]),
    )
    assert {(e.role, e.uid, e.address) for e in reflector.endpoints()} == {
        ("talker", "pod-1", "10.0.0.1:50051"),
        ("code2wav", "pod-1", "10.0.0.1:50061"),
    }


@pytest.mark.parametrize(
    ("conditions", "flags"),
    [
        ({}, (True, False)),
        ({"ready": None, "serving": None, "terminating": None}, (True, False)),
        ({"ready": True, "serving": True, "terminating": False}, (True, False)),
        ({"ready": False}, (False, False)),
        ({"ready": False, "serving": True, "terminating": True}, (False, True)),
        ({"ready": False, "serving": False, "terminating": True}, (False, True)),
        # With `publishNotReadyAddresses` every endpoint is said to be ready.
        ({"ready": True, "serving": False, "terminating": False}, (False, False)),
        ({"ready": True, "serving": True, "terminating": True}, (False, True)),
    ],
)
def test_conditions_say_whether_an_endpoint_is_ready_and_leaves(
    conditions: dict[str, bool | None], flags: tuple[bool, bool]
) -> None:
    told = endpoint("10.0.0.1", "p1") | {"conditions": conditions}
    (only,) = _reflector(_slice("a", "a-talker", told)).endpoints()
    assert (only.ready, only.terminating) == flags


def test_addresses_are_grpc_targets_when_they_are_ipv6() -> None:
    (only,) = _reflector(
        _slice("a", "a-talker", endpoint("fd00::1", "p1"), family="IPv6")
    ).endpoints()
    assert only.address == "[fd00::1]:50051"


def test_pod_is_one_endpoint_when_its_service_has_two_families() -> None:
    (only,) = _reflector(
        _slice("a", "a-talker", endpoint("fd00::1", "p1"), family="IPv6"),
        _slice("b", "a-talker", endpoint("10.0.0.1", "p1")),
    ).endpoints()
    assert only.address == "10.0.0.1:50051"


def test_pod_leaves_when_one_of_two_slices_that_have_it_says_so() -> None:
    slices = (
        _slice("a", "a-talker", endpoint("10.0.0.1", "p1", zone="z")),
        _slice("b", "a-talker", endpoint("10.0.0.1", "p1", terminating=True)),
    )
    for order in itertools.permutations(slices):
        assert _reflector(*order).endpoints() == {
            Endpoint("talker", "p1", "10.0.0.1:50051", zone="z", ready=False, terminating=True)
        }


def test_pods_are_two_endpoints_when_one_has_the_address_of_the_other() -> None:
    endpoints = _reflector(
        _slice(
            "a",
            "a-talker",
            endpoint("10.0.0.1", "old", terminating=True),
            endpoint("10.0.0.1", "new"),
        )
    ).endpoints()
    assert {(e.uid, e.terminating) for e in endpoints} == {("old", True), ("new", False)}


def test_address_identifies_an_endpoint_when_there_is_no_pod() -> None:
    (only,) = _reflector(_slice("a", "a-talker", endpoint("192.0.2.9"))).endpoints()
    assert only.uid == "192.0.2.9:50051"


def test_endpoint_moves_when_its_pod_is_in_another_slice_before_it_has_left_the_first() -> None:
    reflector = _reflector(_slice("a", "a-talker", endpoint("10.0.0.1", "p1")))
    reflector.put(_slice("b", "a-talker", endpoint("10.0.0.1", "p1")))
    before = reflector.endpoints()
    reflector.remove(_slice("a", "a-talker"))
    assert len(before) == 1
    assert reflector.endpoints() == before


def test_list_takes_out_what_no_event_has_told() -> None:
    reflector = _reflector(
        _slice("a", "a-talker", endpoint("10.0.0.1", "p1")),
        _slice("b", "a-talker", endpoint("10.0.0.2", "p2")),
    )
    reflector.replace([_slice("b", "a-talker", endpoint("10.0.0.2", "p2"))])
    assert {e.uid for e in reflector.endpoints()} == {"p2"}


def test_slice_has_no_endpoints_when_it_is_empty_or_of_names() -> None:
    nothing = msgspec.convert({"metadata": {"name": "c"}, "endpoints": None}, type=EndpointSlice)
    reflector = _reflector(
        _slice("a", "a-talker"),
        _slice("b", "a-talker", endpoint("talker.example"), family="FQDN"),
        nothing,
    )
    assert reflector.endpoints() == frozenset()


SLICES = st.builds(
    lambda name, service, pods: _slice(
        name,
        service,
        *(endpoint(f"10.0.0.{n}", f"p{n}", ready=ready, terminating=t) for n, ready, t in pods),
    ),
    st.sampled_from("abcd"),
    st.sampled_from(sorted(SERVICES.values())),
    st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), max_size=5),
)


@given(st.lists(st.tuples(st.booleans(), SLICES), max_size=20))
def test_events_lead_to_the_same_endpoints_as_a_list_of_what_is_left(
    events: list[tuple[bool, EndpointSlice]],
) -> None:
    """Whatever came before: the state depends on the slices there are, not on their history."""
    watching = Reflector(SERVICES, 50051)
    left: dict[str, EndpointSlice] = {}
    for stays, each in events:
        if stays:
            watching.put(each)
            left[each.metadata.name] = each
        else:
            watching.remove(each)
            left.pop(each.metadata.name, None)
    assert watching.endpoints() == _reflector(*reversed(left.values())).endpoints()
    keys = [(e.role, e.uid) for e in watching.endpoints()]
    assert len(keys) == len(set(keys))
    assert all(dataclasses.is_dataclass(e) and e.address for e in watching.endpoints())
