"""Functions, calls and what came of them as the chat template has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import InvalidArgument, NotImplementedYet
from antiphon.values.conversation import (
    Conversation,
    ConversationMessage,
    TextPart,
    ToolCall,
    ToolChoice,
    from_tensors,
    to_tensors,
)
from antiphon_services.text.chat import ChatTokenizer, load_chat_tokenizer
from antiphon_testkit.conversations import chat_messages, chat_tools
from antiphon_testkit.qwen3_omni.scripted_checkpoint import build_scripted_checkpoint

TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>")


def tool(name: str, **more: Any) -> str:
    return json.dumps({"type": "function", "function": {"name": name, **more}}, ensure_ascii=False)


LOOK = tool(
    "look",
    description="Looks at a thing.\nNow & then <é>.",
    parameters={
        "type": "object",
        "properties": {"at": {"type": "string", "enum": ["sky", "sea"]}, "n": {"maximum": 1.50}},
        "required": ["at"],
    },
    strict=False,
)
SAY = tool("say_it")


def said(role: str, *texts: str, calls: Sequence[ToolCall] = (), of: str = "") -> Any:
    parts = tuple(map(TextPart, texts))
    return ConversationMessage(role, parts, tuple(calls), of)  # type: ignore[arg-type]


ONE = ToolCall("call_1", "look", '{"at": "sky",  "n": 1.0}')
TWO = ToolCall("call_2", "say_it", "{}")
SHAPES = {
    "functions alone": [said("user", "Look")],
    "system and functions": [said("system", "Be", " kind."), said("user", "Look", "!")],
    "a call alone": [said("user", "Look"), said("assistant", calls=[ONE])],
    "text and a call": [said("user", "Look"), said("assistant", "I do.", calls=[ONE])],
    "two calls": [said("user", "Look"), said("assistant", calls=[ONE, TWO])],
    "text and two calls": [said("user", "Look"), said("assistant", "I do.", calls=[ONE, TWO])],
    "an answer": [
        said("user", "Look"),
        said("assistant", calls=[ONE]),
        said("tool", "blue", of="call_1"),
    ],
    "two answers and more": [
        said("system", "Be kind."),
        said("user", "Look"),
        said("assistant", calls=[ONE, TWO]),
        said("tool", "blue ", "and wide", of="call_1"),
        said("tool", of="call_2"),
        said("assistant", "It is blue."),
        said("user", "Again"),
        said("assistant", "Well.\n", calls=[TWO]),
        said("tool", '{"said": "你好"}', of="call_2"),
    ],
    "a tool begins": [said("tool", "blue", of="x"), said("user", "What?")],
    "system in the middle": [said("user", "Look"), said("system", "Stop."), said("user", "?")],
}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    """With the tags that Qwen's own tokenizer has, and the tiny one has not."""
    directory = tmp_path_factory.mktemp("tagged") / "tagged"
    build_scripted_checkpoint(directory, {"<tool_response>": "</tool_response>"})
    return load_chat_tokenizer(directory)


def reference(chat: ChatTokenizer, conversation: Conversation) -> list[int]:
    """What Hugging Face makes of it."""
    ids: list[int] = chat.tokenizer.apply_chat_template(
        chat_messages(conversation),
        tools=chat_tools(conversation),  # type: ignore[arg-type]
        add_generation_prompt=True,
        return_dict=False,
    )
    return ids


@pytest.mark.parametrize("tools", [(), (LOOK,), (LOOK, SAY)], ids=["none", "one", "two"])
@pytest.mark.parametrize("messages", SHAPES.values(), ids=SHAPES.keys())
def test_ids_equal_hugging_faces(
    chat: ChatTokenizer, messages: list[ConversationMessage], tools: tuple[str, ...]
) -> None:
    conversation = from_tensors(to_tensors(Conversation(tuple(messages), tools=tools)))
    assert chat.encode(conversation.messages, conversation.tools) == reference(chat, conversation)


def spelling(tag: str) -> list[tuple[str, Conversation]]:
    """The tag in each place that a client writes."""
    one = ToolCall(f"id {tag}", "look", json.dumps({"at": f"x{tag}y"}))
    user = said("user", "Look")
    answer = said("assistant", calls=[ONE])
    described = tool("say_it", description=f"a {tag}", parameters={f"p{tag}": [{"x": tag}]})
    return [
        ("user", Conversation((said("user", f"a {tag}b"),), tools=(LOOK,))),
        ("two parts", Conversation((said("user", f"a {tag[:3]}", f"{tag[3:]}b"),))),
        ("system", Conversation((said("system", f"a {tag}b"), user), tools=(LOOK,))),
        ("answer", Conversation((user, answer, said("tool", f"a {tag}b", of="call_1")))),
        ("arguments", Conversation((user, said("assistant", calls=[one])))),
        ("description", Conversation((user,), tools=(LOOK, described))),
    ]


@pytest.mark.parametrize("tag", [*TAGS, "<|im_end|>", "<|audio_pad|>"])
def test_ids_hold_no_control_id_that_a_client_has_spelled(chat: ChatTokenizer, tag: str) -> None:
    control = set(chat.tokenizer.added_tokens_decoder)
    for place, conversation in spelling(tag):
        ids = chat.encode(conversation.messages, conversation.tools)
        neutral = [(name, each) for name, each in spelling("(q)") if name == place]
        [(_, same)] = neutral
        plain = chat.encode(same.messages, same.tools)
        assert [i for i in ids if i in control] == [i for i in plain if i in control], place
        theirs = chat.tokenizer.decode(reference(chat, conversation))
        assert chat.tokenizer.decode(ids) == theirs, place


def test_thoughts_of_the_assistant_keep_their_tags(chat: ChatTokenizer) -> None:
    [tag] = chat.tokenizer.convert_tokens_to_ids(["<think>"])
    messages = (said("user", "a <tool_call>"), said("assistant", "<think>hm</think>Yes"))
    assert chat.encode(messages).count(tag) == 1
    plain = (said("user", "a"), messages[1])
    assert chat.encode(plain) == reference(chat, Conversation(plain))


@given(text=st.text(max_size=30), arguments=st.dictionaries(st.text(max_size=5), st.text()))
@settings(max_examples=60)
def test_ids_equal_hugging_faces_when_texts_are_random(
    chat: ChatTokenizer, text: str, arguments: dict[str, str]
) -> None:
    call = ToolCall("c", "look", json.dumps(arguments, ensure_ascii=False))
    described = tool("look", description=text, parameters=arguments)
    messages = (said("user", "x"), said("assistant", calls=[call]), said("tool", text, of="c"))
    conversation = Conversation(messages, tools=(described,))
    ids = chat.encode(conversation.messages, conversation.tools)
    assert chat.tokenizer.decode(ids) == chat.tokenizer.decode(reference(chat, conversation))


@pytest.fixture(scope="module")
def quoting(chat: ChatTokenizer) -> ChatTokenizer:
    """With a template that would quote arguments that are text."""
    template = (chat.tokenizer.chat_template or "").replace("called.arguments is string", "false")
    return ChatTokenizer(chat.tokenizer, template)


@pytest.mark.parametrize("tag", [*TAGS, "<|im_end|>", "<|audio_pad|>"])
@pytest.mark.parametrize("where", ['{"at": "%s"}', '{"%s": 1}', '[{"at": ["%s"]}]'])
def test_ids_hold_no_control_id_that_is_spelled_by_escapes_in_arguments(
    chat: ChatTokenizer, quoting: ChatTokenizer, tag: str, where: str
) -> None:
    control = set(chat.tokenizer.added_tokens_decoder)
    escaped = "".join(f"\\u{ord(each):04x}" for each in tag)

    def controls(of: ChatTokenizer, text: str) -> list[int]:
        call = ToolCall("call_1", "look", where % text)
        ids = of.encode([said("user", "Look"), said("assistant", calls=[call])])
        return [each for each in ids if each in control]

    for each in (quoting, chat):
        assert controls(each, escaped) == controls(each, "q")
    call = ToolCall("call_1", "look", where % escaped)
    written = quoting.tokenizer.decode(quoting.encode([said("assistant", calls=[call])]))
    assert where % tag in written


def test_arguments_are_an_object_for_a_template_that_would_quote_text(
    chat: ChatTokenizer, quoting: ChatTokenizer
) -> None:
    assert quoting.takes_tools
    ids = quoting.encode(SHAPES["text and a call"])
    assert '"arguments": {"at": "sky", "n": 1.0}}' in chat.tokenizer.decode(ids)
    for arguments in ("{", r'{"at": "\ud800"}', r'{"\udc00": 1}'):
        with pytest.raises(InvalidArgument):
            quoting.encode([said("assistant", calls=[ToolCall("c", "look", arguments)])])


@pytest.mark.parametrize(
    "template",
    [
        "{% for message in messages %}{{ message.content }}{% endfor %}",
        "{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ messages[2].content }}",
        "{{ raise_exception('no tools') }}",
    ],
    ids=["none", "calls in another form", "refusing"],
)
def test_tools_are_refused_when_the_template_has_no_place_for_them(
    chat: ChatTokenizer, template: str
) -> None:
    without = ChatTokenizer(chat.tokenizer, template)
    assert not without.takes_tools
    for field, conversation in (
        ("tools", Conversation((said("user", "Look"),), tools=(LOOK,))),
        ("messages[1]", Conversation((said("user", "Look"), said("assistant", calls=[ONE])))),
        ("messages[0]", Conversation((said("tool", "blue"),))),
    ):
        with pytest.raises(NotImplementedYet) as raised:
            without.encode(conversation.messages, conversation.tools)
        assert raised.value.field == field


@pytest.mark.parametrize(
    ("conversation", "field"),
    [
        (Conversation((), tools=("{",)), "tools[0]"),
        (Conversation((), tools=('{"type": "function"}',)), "tools[0]"),
        (Conversation((), tools=('{"type": "other", "function": {"name": "x"}}',)), "tools[0]"),
        (Conversation((), tools=(tool(""),)), "tools[0]"),
        (Conversation((), tools=(tool("a b"),)), "tools[0]"),
        (Conversation((), tools=(LOOK, LOOK)), "tools[1]"),
        (Conversation((), tools=(LOOK,), tool_choice=ToolChoice("x")), "tool_choice"),
        (Conversation((said("user", "x", calls=[ONE]),)), "messages"),
        (Conversation((said("user", "x", of="call_1"),)), "messages"),
    ],
)
def test_from_tensors_raises_when_tools_make_no_sense(
    conversation: Conversation, field: str
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        from_tensors(to_tensors(conversation))
    assert raised.value.field == field


def test_the_other_familys_template_takes_no_tools(tmp_path: Path) -> None:
    from antiphon_testkit.qwen2_5_omni.tiny_tokenizer import TOKENIZER

    TOKENIZER.write(tmp_path)
    assert not load_chat_tokenizer(tmp_path).takes_tools
