"""The items of a conversation: bounds, places, and what a listener has heard."""

from __future__ import annotations

import pytest

from antiphon.errors import InvalidArgument, NotFound, ResourceExhausted
from antiphon.values.live_conversation import Item, SpokenPart
from antiphon_gateway.conversations.items import (
    CONTENT_BYTES,
    ITEM_BYTES,
    ItemList,
    cut_part,
    item_as_heard,
    messages_of,
)

STORY = "Once upon a time there was a small voice in a box"


def item(name: str, text: str = "") -> Item:
    return Item("user", (text,), name)


def test_items_are_bounded_in_number_and_bytes() -> None:
    each = ITEM_BYTES + CONTENT_BYTES + 1
    items = ItemList(max_items=2, max_bytes=2 * each + 3)
    items.insert(item("a", "abc"))
    with pytest.raises(ResourceExhausted, match="bytes"):
        items.insert(item("b", "x"))
    items.replace(item("a", "ab"))
    items.insert(item("b", "x"))
    with pytest.raises(ResourceExhausted, match="items"):
        items.insert(item("c"))
    items.remove("a")
    assert items.insert(item("c", "xy")) == "b"
    with pytest.raises(InvalidArgument):
        items.insert(item("c"))
    with pytest.raises(NotFound):
        items.remove("a")


def test_items_stand_behind_the_one_that_is_named() -> None:
    items = ItemList(max_items=9, max_bytes=1 << 20)
    assert [items.insert(item("a")), items.insert(item("c"))] == [None, "a"]
    assert items.insert(item("b"), "a") == "a"
    assert items.insert(item("0"), "root") is None
    assert items.insert(item("d"), "c") == "c"
    assert [each.id for each in items] == ["0", "a", "b", "c", "d"]


def test_empty_items_say_nothing() -> None:
    messages, _ = messages_of([item("a"), item("b", "Hi")], "Be kind")
    assert [message.role for message in messages] == ["system", "user"]


@pytest.mark.parametrize(
    ("seconds", "end_s", "complete", "heard"),
    [
        # Evenly spread over the audio, at a word's end.
        (4.9, 4.9, True, STORY),
        (4.9, 9.0, True, STORY),
        (4.9, 1.0, True, "Once upon"),
        (4.9, 0.0, True, ""),
        # An answer that was cut off has more text than audio: what can be said in the time.
        (0.5, 0.5, False, "Once upon"),
        (0.5, 9.0, False, "Once upon"),
        (0.0, 1.0, False, ""),
    ],
)
def test_what_was_heard_is_estimated(
    seconds: float, end_s: float, complete: bool, heard: str
) -> None:
    content = cut_part(SpokenPart(STORY, seconds), end_s, complete=complete)
    assert content.transcript == heard
    assert content.audio_s == min(seconds, end_s)


@pytest.mark.parametrize(
    ("complete", "end_s", "heard"),
    [
        (True, 0.5, STORY),
        (True, 9.0, STORY),
        # Of an interrupted answer no more than can be spoken within its audio.
        (False, 0.5, "Once upon"),
        (False, 9.0, "Once upon"),
        (True, 0.25, "Once upon a time there"),
        (False, 0.25, "Once"),
    ],
)
def test_item_is_cut_as_far_as_its_own_state_says(complete: bool, end_s: float, heard: str) -> None:
    spoken = Item("assistant", (SpokenPart(STORY, 0.5),), "a", complete)
    cut = item_as_heard(spoken, end_s)
    assert cut.parts == (SpokenPart(heard, min(end_s, 0.5)),)
    assert (cut.id, cut.role, cut.complete) == ("a", "assistant", complete)


def test_what_was_not_spoken_is_not_cut() -> None:
    written = item("a", STORY)
    assert item_as_heard(written, 0.0) == written
