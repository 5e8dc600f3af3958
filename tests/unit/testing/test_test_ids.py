"""The ids of tests, which the workers of pytest-xdist must agree on."""

from __future__ import annotations

import pytest

from tests.parameter_ids import LONGEST_ID


@pytest.mark.parametrize(
    "value", [b"", b"x", b"RIFF" * 100, bytearray(b"x"), "x" * (LONGEST_ID + 1)]
)
def test_bytes_and_long_texts_are_identified_by_the_argument(
    value: object, pytestconfig: pytest.Config
) -> None:
    identify = pytestconfig.hook.pytest_make_parametrize_id
    assert identify(config=pytestconfig, val=value, argname="body") == "body"


@pytest.mark.parametrize("value", ["", "x" * LONGEST_ID, 3, None, ("x",)])
def test_other_values_are_identified_by_pytest(value: object, pytestconfig: pytest.Config) -> None:
    identify = pytestconfig.hook.pytest_make_parametrize_id
    assert identify(config=pytestconfig, val=value, argname="body") is None


def test_no_id_contains_the_bytes_of_an_argument(request: pytest.FixtureRequest) -> None:
    long = [item.nodeid[:LONGEST_ID] for item in request.session.items if len(item.nodeid) > 1_000]
    assert not long
