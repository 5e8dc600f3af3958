"""Error messages about an invalid choice name the values that are allowed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from antiphon.deployment.allowed_values import with_allowed_values
from antiphon.deployment.schema import deployment_of
from antiphon.errors import InvalidArgument


class Spoken(msgspec.Struct, tag_field="type", tag="spoken"):
    pass


class Written(msgspec.Struct, tag_field="type", tag="written"):
    form: Literal["prose", "verse"] | None = None


class Page(msgspec.Struct):
    parts: list[Spoken | Written] = []
    by_name: dict[str, Literal["b", "a"]] = {}
    size: Annotated[Literal[2, 1], msgspec.Meta(title="size")] = 1
    number: int = 0


@pytest.mark.parametrize(
    ("content", "path", "allowed"),
    [
        ({"parts": [{"type": "sung"}]}, "parts[0].type", "spoken, written"),
        ({"parts": [{"type": "written", "form": "x"}]}, "parts[0].form", "prose, verse"),
        ({"by_name": {"k": "c"}}, "by_name[...]", "a, b"),
        ({"size": 3}, "size", "1, 2"),
    ],
)
def test_the_message_lists_the_allowed_values(content: Any, path: str, allowed: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(content, Page)
    fault, _, place = str(refused.value).partition(" - at `$.")
    assert place == f"{path}`"
    assert with_allowed_values(fault, Page, path) == f"{fault}; use one of: {allowed}"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("Expected `int`, got `str`", "size"),
        ("Invalid enum value 'x'", "nothing.here"),
        ("Invalid enum value 'x'", "number"),
        ("Invalid enum value 'x'", ""),
    ],
)
def test_other_messages_and_unknown_places_stay_as_they_are(text: str, path: str) -> None:
    assert with_allowed_values(text, Page, path) == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"stages": {"talker": {"dtype": "int8"}}},
            "stages.talker.dtype: Invalid enum value 'int8'; use one of: bfloat16, float16, "
            "float32",
        ),
        (
            {"delivery": {"codes": "slow"}},
            "delivery[...]: Invalid enum value 'slow'; use one of: stream, whole",
        ),
        (
            {"gateway": {"unknown_fields": "drop"}},
            "gateway.unknown_fields: Invalid enum value 'drop'; use one of: ignore, reject",
        ),
    ],
)
def test_a_setting_with_an_invalid_choice(content: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        deployment_of(content)
    assert refused.value.message == message
