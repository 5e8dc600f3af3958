from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ErrorCode
from antiphon.values.conversation import ToolCall
from antiphon.wire.tool_calls import CallPiece
from antiphon_services.text.calls import CallRules, ReplyCalls
from antiphon_services.text.tool_format import CLOSE, OPEN
from antiphon_services.text.written_call import MalformedCall
from antiphon_testkit.conversations import ended_calls

NAMES = ("look", "say_it")
RULES = CallRules(NAMES)


def call(name: str = "look", arguments: str = '{"at": "sky"}') -> str:
    return f'{OPEN}\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n{CLOSE}'


def take(pieces: list[str], rules: CallRules = RULES) -> tuple[str, list[ToolCall]]:
    reply, shown, left = ReplyCalls(rules), "", []
    for index, piece in enumerate(pieces):
        text, more = reply.take(piece, last=index == len(pieces) - 1)
        shown += text
        left += more
    return shown, ended_calls(left)


def cut(text: str, at: list[int]) -> list[str]:
    places = sorted({0, *(each % (len(text) + 1) for each in at), len(text)})
    return [text[a:b] for a, b in itertools.pairwise(places)] or [""]


@given(
    said=st.sampled_from(["", "Hello", "a < b", "<tool_cal", "<tool_call", "\n", "x\n\n", "</"]),
    count=st.integers(0, 3),
    between=st.sampled_from(["", "\n", " and <tool_cal", "\nThen this: "]),
    at=st.lists(st.integers(0, 500), max_size=12),
)
def test_text_and_calls_are_the_same_however_the_reply_comes(
    said: str, count: int, between: str, at: list[int]
) -> None:
    written = [call(NAMES[each % 2], f'{{"n": {each}}}') for each in range(count)]
    text = said + ("\n" if count and said else "") + between.join(written)
    shown, calls = take(cut(text, at))
    assert shown == said
    assert calls == [ToolCall("", NAMES[n % 2], f'{{"n": {n}}}') for n in range(count)]


def test_arguments_keep_their_characters() -> None:
    arguments = '{ "a" :1.50,"b":["é","\\u00e9"],\n "c":{} }'
    assert take([call(arguments=arguments)])[1] == [ToolCall("", "look", arguments)]


def test_what_stands_behind_a_call_is_dropped() -> None:
    assert take([f"a{call()}b\n{call()} c"])[0] == "a"
    assert len(take([f"a{call()}b\n{call()} c"])[1]) == 2


def test_text_is_held_back_while_it_may_begin_a_call() -> None:
    reply = ReplyCalls(RULES)
    assert reply.take("Look.\n", last=False)[0] == "Look."
    assert reply.speakable == len("Look.")
    assert reply.take("<tool_", last=False)[0] == ""
    assert reply.take("box>", last=False)[0] == "\n<tool_box>"
    assert reply.speakable == len("Look.\n<tool_box>")


def test_line_break_before_a_call_is_spoken_and_not_shown() -> None:
    reply = ReplyCalls(RULES)
    assert reply.take(f"Look.\n{OPEN}", last=False)[0] == "Look."
    assert reply.speakable == len("Look.\n")
    assert reply.begun


@pytest.mark.parametrize(
    "written",
    [
        f"{OPEN}\n{{}}\n{CLOSE}",
        f"{OPEN}{CLOSE}",
        f"{OPEN}look{CLOSE}",
        f'{OPEN}{{"name": "look"}}{CLOSE}',
        call(arguments='"text"'),
        call(arguments="[]"),
        call(arguments="{,}"),
        call(arguments='{"a": NaN}'),
        call(arguments='{"a": 1'),
        call("cook"),
        call("look") + "\n" + call("cook"),
        f"{OPEN}{{}}{{}}{CLOSE}",
        f"{OPEN}{OPEN}{CLOSE}{CLOSE}",
        f'{OPEN}{{"name": "look", "arguments": {{}}, "arguments": {{"a": 1}}}}{CLOSE}',
        f'{OPEN}{{"name": "look", "arguments": {{}}, "name": "say_it"}}{CLOSE}',
        OPEN,
        f'{OPEN}\n{{"name": "look", "arguments": {{}}}}',
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
    ],
)
def test_take_raises_when_a_call_is_none(written: str) -> None:
    with pytest.raises(MalformedCall) as raised:
        take(["Hello ", *written])
    assert raised.value.code is ErrorCode.UNUSABLE_OUTPUT
    assert raised.value.edge == "tool_calls"


def test_reply_is_complete_behind_its_first_call_when_calls_are_not_parallel() -> None:
    reply = ReplyCalls(CallRules(NAMES, parallel=False))
    shown, calls = reply.take(call() + call(), last=False)
    assert (shown, len(calls), reply.complete) == ("", 1, True)


@pytest.mark.parametrize("name", ["", "say_it"])
def test_reply_goes_on_with_the_call_that_it_was_made_to_begin_with(name: str) -> None:
    rules = CallRules.forcing(NAMES, name, parallel=True)
    whole = call("say_it", '{"what": "so"}')
    # The model goes on with a space, which is a part of its next token.
    assert whole.startswith(rules.begun)
    rest = whole.removeprefix(rules.begun)
    assert take(cut(rest, [1, 5, 9]), rules) == ("", [ToolCall("", "say_it", '{"what": "so"}')])
    with pytest.raises(MalformedCall):
        take([rest[:-3]], rules)


def test_arguments_leave_as_they_are_written() -> None:
    reply = ReplyCalls(RULES)

    def more(text: str) -> list[CallPiece]:
        return reply.take(text, last=False)[1]

    assert more(f'I look.\n{OPEN}\n{{"name": "lo') == []
    assert more('ok", "arguments": ') == []
    assert more('{"at') == [CallPiece("look", '{"at')]
    assert more('": "\\"}') == [CallPiece("", '": "\\"}')]
    # It might end the call, and does not.
    assert more(" </tool_") == [CallPiece("", " ")]
    assert more('box>", "b": [{}') == [CallPiece("", '</tool_box>", "b": [{}')]
    assert more("]}") == [CallPiece("", "]}")]
    assert more(" }\n") == []
    assert more(CLOSE) == [CallPiece("", "", ends=True)]


def test_call_leaves_whole_when_its_arguments_come_first() -> None:
    written = f'{OPEN}{{"arguments": {{"at": 1}}, "name": "look"}}'
    reply = ReplyCalls(RULES)
    assert reply.take(written, last=False)[1] == []
    assert reply.take(CLOSE, last=True)[1] == [CallPiece("look", '{"at": 1}', ends=True)]


def test_nothing_of_a_call_leaves_when_there_is_no_such_function() -> None:
    with pytest.raises(MalformedCall, match="unknown function 'cook'"):
        ReplyCalls(RULES).take(f'{OPEN}{{"name": "cook", "arguments": {{', last=False)
