"""YAML files are read as plain data, whatever is in them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from antiphon.deployment import yaml_file
from antiphon.deployment.schema import load_deployment
from antiphon.deployment.yaml_file import MAX_DEPTH, MAX_VALUES, decode_yaml
from antiphon.errors import InvalidArgument

LEVELS = 12


def repeating(level: str) -> bytes:
    """Lists or mappings, each of which has nine times the one before it."""
    lines = ["a0: &a0 {k: v}"]
    for number in range(1, LEVELS):
        several = ", ".join(level.format(n=n, last=f"*a{number - 1}") for n in range(9))
        brackets = "{%s}" if ":" in level else "[%s]"
        lines.append(f"a{number}: &a{number} {brackets % several}")
    return "\n".join(lines).encode()


FAULTS = {
    "lists of lists": (repeating("{last}"), "not contain more than 1000000 values"),
    "mappings of mappings": (repeating("k{n}: {last}"), "not contain more than 1000000 values"),
    "many values": (
        b"a: [" + b"x," * (MAX_VALUES + 1) + b"]",
        "not contain more than 1000000 values",
    ),
    "a list in itself": (b"a: &a [*a]", "line 1: the alias 'a' refers to no earlier value"),
    "a mapping in itself": (b"&a {b: *a}", "the alias 'a' refers to no"),
    "a mapping that merges itself": (b"a: &a {<<: *a}", "the alias 'a' refers to no"),
    "levels": (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested more than 64 levels"),
    "very many levels": (b"[" * 1_000_000, "levels|nesting depth"),
    "a key twice": (b"a: 1\nb: 2\na: 3", "line 3: the key 'a' is repeated"),
    "a merge key twice": (b"x: &x {}\ny: {<<: *x, <<: *x}", "the key << is repeated"),
    "a merge of a text": (b"a: {<<: b}", "<< must be a mapping"),
    "a list as a key": (b"? [a]\n: b", "a mapping key must be"),
    "an object": (b"a: !!python/object/apply:os.getpid []", "python/object/apply"),
    "a tagged text": (b"a: !secret b", "constructor for the tag '!secret'"),
    "a tagged mapping": (b"a: !!set {b, c}", "set' is not supported"),
    "no integer": (b"a: !!int b", "'b' is not a valid int"),
    "no float": (b"a: !!float b", "'b' is not a valid float"),
    "no boolean": (b"a: !!bool maybe", "'maybe' is not a valid bool"),
    "no time": (b"a: !!timestamp soon", "'soon' is not a valid timestamp"),
    "a thirteenth month": (b"a: 2027-13-01T00:00:00Z", "is not a valid timestamp"),
    "a far time zone": (b"a: 2027-01-01T00:00:00+99:00", "is not a valid timestamp"),
    "a long number": (b"a: " + b"9" * 5000, "number has more than 64 characters"),
    "a number of base 60": (b"a: 1" + b":59" * 1_000_000, "number has more than 64 characters"),
    "two documents": (b"a: 1\n---\na: 2", "must contain a single document"),
    "no UTF-8": (b"a: \xe9", "unacceptable character"),
    "half a list": (
        b"a: [",
        "^line [12], column [15]: (did not find )?expected (the )?node content",
    ),
    "a list in a key": (b"a: [1\nb: 2", "^line 2, column 2: (did not find )?expected ',' or ']'"),
    "a forbidden character": (b"a: \x01", "^unacceptable character at position 3: "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported_and_takes_no_memory(fault: str) -> None:
    content, words = FAULTS[fault]
    with pytest.raises(InvalidArgument, match=words) as refused:
        decode_yaml(content)
    assert "\n" not in refused.value.message


# What is large takes the pure loader minutes.
@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - {"many values", "a number of base 60"}))
def test_a_fault_is_reported_without_libyaml(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_file, "_LOADER", yaml.SafeLoader)
    content, words = FAULTS[fault]
    with pytest.raises(InvalidArgument, match=words) as refused:
        decode_yaml(content)
    assert "\n" not in refused.value.message


def test_values_have_the_types_of_yaml() -> None:
    content = b"""
    texts: [a, 'yes', "1", !!str 2, '']
    others: [yes, off, ~, 12, 0x1f, -1.5, .inf, 2027-01-31T00:00:00Z]
    1: [{}, []]
    """
    assert decode_yaml(content) == {
        "texts": ["a", "yes", "1", "2", ""],
        "others": [
            True, False, None, 12, 31, -1.5, float("inf"), datetime(2027, 1, 31, tzinfo=UTC),
        ],
        1: [{}, []],
    }  # fmt: skip
    assert decode_yaml(b"") is None
    assert decode_yaml("\ufeffa: b".encode()) == decode_yaml("a: b".encode("utf-16")) == {"a": "b"}


def test_aliases_and_merge_keys_repeat_values() -> None:
    content = b"""
    one: &one {a: 1, b: 2}
    two: &two {b: 3, c: 4}
    again: [*one, *one]
    merged: {<<: [*one, *two], c: 5}
    within: {c: 6, <<: *two}
    """
    read = decode_yaml(content)
    assert isinstance(read, dict)
    assert read["again"] == [{"a": 1, "b": 2}] * 2
    assert read["merged"] == {"a": 1, "b": 2, "c": 5}
    assert read["within"] == {"b": 3, "c": 6}


@pytest.mark.parametrize("fault", ["lists of lists", "a list in itself", "no integer", "levels"])
def test_a_deployment_file_with_a_fault_is_named(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_bytes(FAULTS[fault][0])
    with pytest.raises(InvalidArgument, match=rf"^{re.escape(str(path))}: "):
        load_deployment(path)
