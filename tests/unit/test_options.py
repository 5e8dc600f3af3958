from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from antiphon.errors import InvalidArgument
from antiphon.v1 import session_pb2, stage_pb2
from antiphon.values.options import Option, OptionKind, OptionValue
from antiphon.wire.options import (
    option_from_proto,
    option_to_proto,
    option_value_to_proto,
    option_values_from_proto,
)

LANGUAGE = Option("language", OptionKind.TEXT, choices=("English", "Chinese"), max_bytes=8)
INSTRUCTION = Option("instruction", OptionKind.TEXT, "How to speak.", max_bytes=6, instructs=True)
SCALE = Option("guidance", OptionKind.NUMBER, least=0.5, most=3.0)
VOICE = Option("reference_audio", OptionKind.AUDIO, sample_rate_hz=10, max_s=2.0)
RECORDING = np.ones(20, np.float32)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (LANGUAGE, "Chinese"),
        (LANGUAGE, "cHINESE"),
        (INSTRUCTION, "äöü"),
        (INSTRUCTION, ""),
        (SCALE, 0.5),
        (SCALE, 3),
        (VOICE, RECORDING),
        (VOICE, np.ones(21, np.float32)),
    ],
)
def test_option_takes_a_value_when_it_is_of_its_kind_and_within_its_bounds(
    option: Option, value: OptionValue
) -> None:
    option.check(value)


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        (LANGUAGE, "Klingon", "one of English, Chinese"),
        (LANGUAGE, "", "one of"),
        (LANGUAGE, 1.0, "a string"),
        (INSTRUCTION, "äöüs", "at most 6 bytes"),
        (INSTRUCTION, "\ud800", "at most 6 bytes"),
        (INSTRUCTION, RECORDING, "a string"),
        (SCALE, 0.49, "from 0.5 to 3"),
        (SCALE, float("nan"), "from 0.5 to 3"),
        (SCALE, 1 << 2000, "from 0.5 to 3"),
        (SCALE, True, "from 0.5 to 3"),
        (SCALE, False, "from 0.5 to 3"),
        (SCALE, "1", "from 0.5 to 3"),
        (VOICE, "hello", "a recording"),
        (VOICE, np.ones(22, np.float32), "at most 2 s"),
        (VOICE, np.ones(0, np.float32), "at most 2 s"),
        (VOICE, np.ones((2, 2), np.float32), "a recording"),
        (VOICE, np.ones(2, np.int32), "a recording"),
        (VOICE, np.array([np.nan], np.float32), "NaN"),
    ],
)
def test_option_refuses_another_value_and_names_its_field(
    option: Option, value: OptionValue, wanted: str
) -> None:
    with pytest.raises(InvalidArgument, match=wanted) as refused:
        option.check(value)
    assert refused.value.field == f"options.{option.name}"


@pytest.mark.parametrize("option", [LANGUAGE, INSTRUCTION, SCALE, VOICE])
def test_option_comes_back_from_its_description(option: Option) -> None:
    assert option_from_proto(option_to_proto(option)) == option


def test_option_of_an_unknown_kind_is_passed_over() -> None:
    assert option_from_proto(stage_pb2.OptionDescription(name="x")) is None


def test_option_kinds_are_those_of_the_contract() -> None:
    told = {
        name.removeprefix("OPTION_KIND_") for name in stage_pb2.OptionKind.DESCRIPTOR.values_by_name
    }
    assert told - {"UNSPECIFIED"} == {kind.name for kind in OptionKind}
    assert {each.name for each in dataclasses.fields(Option)} == {
        each.name for each in stage_pb2.OptionDescription.DESCRIPTOR.fields
    }


def test_option_values_come_back_from_their_messages() -> None:
    values: dict[str, OptionValue] = {"a": "text", "b": 0.25, "c": RECORDING}
    protos = {name: option_value_to_proto(value) for name, value in values.items()}
    back = option_values_from_proto(protos)
    np.testing.assert_array_equal(back.pop("c"), values.pop("c"))
    assert back == values


@pytest.mark.parametrize(
    "proto", [session_pb2.OptionValue(), session_pb2.OptionValue(float32=b"123")]
)
def test_option_value_is_refused_when_it_is_none(proto: session_pb2.OptionValue) -> None:
    with pytest.raises(InvalidArgument, match=r"options\.a"):
        option_values_from_proto({"a": proto})
