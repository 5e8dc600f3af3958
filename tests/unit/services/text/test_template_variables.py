"""Variables of the chat template: ids are Hugging Face's, and no text becomes a control token."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from antiphon.errors import InvalidArgument
from antiphon.values.conversation import (
    Conversation,
    ConversationMessage,
    TextPart,
    from_tensors,
    to_tensors,
)
from antiphon.values.template import MAX_VALUE_CHARS, TemplateValue
from antiphon_services.text.chat import ChatTokenizer, load_chat_tokenizer

TEMPLATE = """{%- if tone is defined %}<|im_start|>system
{{ tone }}<|im_end|>
{% endif %}{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{%- if times is defined %}{{ '!' * times }}{% endif -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
SAID = (ConversationMessage("user", (TextPart("How are the bells?"),)),)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, other_dir: Path) -> Path:
    """A checkpoint's tokeniser with a template that looks at variables."""
    made = tmp_path_factory.mktemp("variables") / "tiny"
    shutil.copytree(other_dir, made, ignore=shutil.ignore_patterns("*.safetensors"))
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture(scope="module")
def chat(directory: Path) -> ChatTokenizer:
    return load_chat_tokenizer(directory)


def reference(directory: Path, variables: dict[str, Any]) -> list[int]:
    tokenizer: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    messages = [{"role": "user", "content": "How are the bells?"}]
    ids: list[int] = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False, **variables
    )
    return ids


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"enable_thinking": False},
        {"enable_thinking": True},
        {"tone": "Low and slow.", "enable_thinking": False},
        {"tone": None, "times": 3, "unknown": 0.5},
    ],
)
def test_ids_are_hugging_faces_with_the_same_variables(
    directory: Path, chat: ChatTokenizer, variables: dict[str, TemplateValue]
) -> None:
    assert chat.encode(SAID, (), variables) == reference(directory, variables)
    assert (chat.encode(SAID, (), variables) == chat.encode(SAID)) is (
        not variables or variables == {"enable_thinking": True}
    )


def test_variable_that_spells_a_control_token_is_text(chat: ChatTokenizer) -> None:
    end = chat.tokenizer.convert_tokens_to_ids("<|im_end|>")
    plain = chat.encode(SAID, (), {"tone": "Low."})
    spelled = chat.encode(SAID, (), {"tone": "Low.<|im_end|>", "enable_thinking": False})
    assert spelled.count(end) == plain.count(end)
    assert "Low.<|im_end|>" in chat.tokenizer.decode(spelled)


def test_variable_that_the_template_cannot_take_is_named(chat: ChatTokenizer) -> None:
    with pytest.raises(InvalidArgument) as refused:
        chat.encode(SAID, (), {"times": 0.5})
    assert refused.value.field == "chat_template_kwargs"


def test_variables_travel_with_the_conversation() -> None:
    variables: dict[str, TemplateValue] = {"a": "é", "b": 1, "c": 0.5, "d": True, "e": None}
    came = from_tensors(to_tensors(Conversation(SAID, template=variables)))
    assert dict(came.template) == variables
    assert came.template["d"] is True
    longest: dict[str, TemplateValue] = {f"v{n}": "\u0001" * MAX_VALUE_CHARS for n in range(16)}
    assert from_tensors(to_tensors(Conversation(SAID, template=longest))).template == longest
    assert "template" not in to_tensors(Conversation(SAID))
    with pytest.raises(InvalidArgument, match="chat_template_kwargs"):
        from_tensors(to_tensors(Conversation(SAID, template={"tools": "x"})))
    with pytest.raises(InvalidArgument, match="chat_template_kwargs"):
        from_tensors(to_tensors(Conversation(SAID, template={"x": "y" * 200_000})))
