"""Uses a chat template and a tokenizer to convert messages to prompt IDs. Each recording, image and
video becomes a placeholder.

For ordinary text, the IDs are the same as with Hugging Face, which tokenizes the entire rendered
template. However, the content of a message, the description of a function or a call can never
become a control ID. If a text contains the spelling of a control token, it is tokenized as a
sequence of ordinary characters.

If there is no such text, the prompt is rendered and tokenized in the same way as by Hugging Face.
Otherwise, a mark is inserted after every character that can begin a control token, so that the only
intact control tokens in the rendered prompt are the template's own. The prompt is then split at
these tokens, the marks are removed, and the pieces are tokenized with control tokens disabled.
Since the tokenizer also starts by splitting a text at added tokens, the pieces have the same IDs as
they would have within the whole text. The assistant's own thoughts keep their tags, because
templates search for these tags to remove the thoughts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from antiphon.errors import FailedPrecondition, InvalidArgument, NotImplementedYet
from antiphon.pipelines.files import REMEDY, read_json
from antiphon.values.conversation import AudioPart, ConversationMessage, ImagePart, Part, TextPart
from antiphon.values.template import FIELD, TemplateValue
from antiphon_services.text.literal import (
    SETTINGS_FILE,
    LiteralTokenizer,
    load_tokenizer,
    text_ids,
    untruncated,
)
from antiphon_services.text.tool_format import find_tool_format

TEMPLATE_FILE = "chat_template.json"

_MARK = "\ufdd0"
"""A Unicode noncharacter, which never occurs in valid text."""


NOTHING: Mapping[str, TemplateValue] = MappingProxyType({})
_OF_VALUES = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)
"""The exceptions that a template can raise if values have unexpected types."""


class ChatTokenizer:
    """A checkpoint's chat template and tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str | None) -> None:
        """Create a chat tokenizer. If `template` is not None, it replaces the tokenizer's own
        template.
        """
        self.tokenizer = tokenizer
        self._template = template
        self._whole = untruncated(tokenizer)
        self._literal = LiteralTokenizer(tokenizer)
        self.bytes_per_id = self._literal.bytes_per_id
        control = self._literal.control
        longest_first = sorted(control, key=len, reverse=True)
        self._any_control = re.compile("|".join(map(re.escape, longest_first)))
        self._first = re.compile(
            "([" + "".join(re.escape(each) for each in sorted({t[0] for t in control})) + "])"
        )
        self._tool_format = find_tool_format(self._apply)

    @property
    def takes_tools(self) -> bool:
        """Whether the template supports functions and formats calls in a known way."""
        return self._tool_format is not None

    def encode(
        self,
        messages: Sequence[ConversationMessage],
        tools: Sequence[str] = (),
        variables: Mapping[str, TemplateValue] = NOTHING,
    ) -> list[int]:
        """Return the prompt IDs, up to and including the header of the assistant's reply.

        `tools` and `variables` are the `tools` and `template` of a `Conversation`. Raises
        `InvalidArgument` if the template rejects the messages or variables, and `NotImplementedYet`
        if it doesn't support functions or calls.
        """
        if self._tool_format is None:
            check_no_tools(messages, tools)
        try:
            described: list[Any] = [json.loads(each) for each in tools]
            given = dict(variables)
            strings = (*_strings(described), *_strings(given), *self._called(messages))
            texts = "".join([*map(_text, messages), *strings])
            marked = self._any_control.search(texts) is not None
            rendered = self._render(messages, described, given, marked=marked)
        except RecursionError as error:
            raise InvalidArgument("tools: are nested too deeply", field="tools") from error
        if not marked:
            return text_ids(self._whole, rendered)
        if _MARK in texts:
            raise InvalidArgument("messages: U+FDD0 is not a character", field="messages")
        return self.encode_pieces(rendered)

    def _render(
        self,
        messages: Sequence[ConversationMessage],
        tools: list[Any],
        variables: dict[str, Any],
        *,
        marked: bool,
    ) -> str:
        """Apply the chat template to the messages."""
        try:
            return self._apply(
                [self._message(message, marked) for message in messages],
                self._marked(tools) if marked else tools,
                self._marked(variables) if marked else variables,
            )
        except _OF_VALUES as error:
            if not variables:
                raise
            raise InvalidArgument(
                f"{FIELD}: the chat template can't be rendered with these variables: {error}",
                field=FIELD,
            ) from error
        except TemplateError as error:
            raise InvalidArgument(
                f"messages: the chat template rejects them: {error}", field="messages"
            ) from error

    def _apply(
        self,
        conversation: list[dict[str, Any]],
        tools: list[Any],
        variables: Mapping[str, Any] = NOTHING,
    ) -> str:
        rendered: Any = self.tokenizer.apply_chat_template(
            conversation,
            tools=tools or None,
            chat_template=self._template,
            add_generation_prompt=True,
            tokenize=False,
            **variables,
        )
        return str(rendered)

    def _called(self, messages: Sequence[ConversationMessage]) -> Iterator[str]:
        """Yield all texts in the calls, in the form in which they are passed to the template.

        If arguments are passed as an object, their escape sequences have been resolved.
        """
        for message in messages:
            yield message.tool_call_id
            if self._tool_format is not None:
                for call in message.tool_calls:
                    yield from _strings(self._tool_format.write(call))

    def _message(self, message: ConversationMessage, marked: bool) -> dict[str, Any]:
        """Return a message in the template's format, which is the same as OpenAI's."""
        content = self._content(message, marked=marked)
        written: dict[str, Any] = {"role": message.role, "content": content}
        if message.tool_call_id:
            written["tool_call_id"] = self._words(message.tool_call_id, marked=marked)
        if self._tool_format is not None and message.tool_calls:
            calls = [self._tool_format.write(each) for each in message.tool_calls]
            written["tool_calls"] = self._marked(calls) if marked else calls
        return written

    def _marked(self, value: Any) -> Any:
        """Return a copy of a JSON value with marks inserted into its texts."""
        if isinstance(value, str):
            return self._words(value, marked=True)
        if isinstance(value, list):
            return [self._marked(each) for each in value]
        if isinstance(value, dict):
            return {self._marked(name): self._marked(each) for name, each in value.items()}
        return value

    def _content(self, message: ConversationMessage, *, marked: bool) -> str | list[dict[str, Any]]:
        """Return a message's content in the template's format, which is a string if the message
        contains only text.
        """
        if all(isinstance(part, TextPart) for part in message.parts):
            words = self._words(_text(message), marked=marked)
            if marked and message.role == "assistant":
                words = words.replace(f"<{_MARK}think>", "<think>")
                words = words.replace(f"<{_MARK}/think>", "</think>")
            return words
        return [self._part(part, marked=marked) for part in message.parts]

    def _part(self, part: Part, *, marked: bool) -> dict[str, Any]:
        """Return a message part in the template's format."""
        match part:
            case TextPart(text):
                return {"type": "text", "text": self._words(text, marked=marked)}
            case AudioPart(index):
                return {"type": "audio", "audio": index}
            case ImagePart(index):
                return {"type": "image", "image": index}
            case _:
                return {"type": "video", "video": part.index}

    def _words(self, text: str, *, marked: bool) -> str:
        """Return the text with a mark after every character that can begin a control token."""
        return self._first.sub(rf"\1{_MARK}", text) if marked else text

    def encode_pieces(self, rendered: str) -> list[int]:
        """Return the IDs of a text in which control tokens are recognized. This is either a
        rendered prompt, in which only the template's own control tokens are intact, or the text
        that a reply is forced to begin with.
        """
        ids: list[int] = []
        end = 0
        for match in self._any_control.finditer(rendered):
            ids += self._encode_literally(rendered[end : match.start()])
            ids.append(self._literal.control[match.group()])
            end = match.end()
        return ids + self._encode_literally(rendered[end:])

    def _encode_literally(self, piece: str) -> list[int]:
        """Return the IDs of a piece after removing its marks. None of these is a control ID."""
        return self._literal.encode(piece.replace(_MARK, ""), field="messages")


def load_chat_tokenizer(model_dir: Path, *, registered: str = "") -> ChatTokenizer:
    """Return the tokenizer and chat template of a checkpoint directory. Only local files are used.

    `registered` has the same meaning as in `load_tokenizer`. If `chat_template.json` exists, its
    template is used, because Hugging Face's processor prefers it to the tokenizer's template.
    Raises `FailedPrecondition` if there is no template, or if the vocabulary is missing. In the
    latter case, transformers would create an empty vocabulary.
    """
    tokenizer = load_tokenizer(model_dir, registered=registered)
    path = model_dir / TEMPLATE_FILE
    template = read_json(path).get("chat_template") if path.is_file() else None
    if template is None and tokenizer.chat_template is None:
        raise FailedPrecondition(
            f"{model_dir}: has no chat template in chat_template.jinja, {TEMPLATE_FILE} or "
            f"{SETTINGS_FILE}; {REMEDY}"
        )
    return ChatTokenizer(tokenizer, template)


def check_no_tools(messages: Sequence[ConversationMessage], tools: Sequence[str]) -> None:
    """Raise `NotImplementedYet` if there are any functions or calls."""
    there = "tools" if tools else ""
    for index, message in enumerate(messages):
        if message.role == "tool" or message.tool_calls:
            there = there or f"messages[{index}]"
    if there:
        raise NotImplementedYet(
            f"{there}: this checkpoint's chat template doesn't support tools; leave them out",
            field=there,
        )


def text_bytes(messages: Sequence[ConversationMessage]) -> int:
    """Return the size of the text in all messages, including calls, in UTF-8 bytes."""
    said = (_text(message) for message in messages)
    return sum(len(each.encode()) for each in (*said, *_calls(messages)))


def _text(message: ConversationMessage) -> str:
    """Return the whole text of a message."""
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def _calls(messages: Sequence[ConversationMessage]) -> Iterator[str]:
    """Yield all texts in the messages' calls, as they were received."""
    for message in messages:
        yield message.tool_call_id
        for call in message.tool_calls:
            yield from (call.id, call.name, call.arguments)


def _strings(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _strings(each)
