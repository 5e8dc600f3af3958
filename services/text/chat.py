"""Messages to prompt ids: chat template and tokeniser, with one placeholder for each recording,
image and video.

Law: for ordinary text the ids equal Hugging Face's, which tokenises the rendered
template as a whole. What a message says can never become a control id: a special
token that is spelled in a text is tokenised as the characters that it consists of.

How: text that spells no special token is rendered and tokenised as Hugging Face
does. Otherwise a mark is put after every character of it that can begin a special
token, so that in the rendered prompt only the template's own special tokens are
whole; the prompt is cut at those, the marks are taken out, and the pieces are
tokenised with special tokens switched off. The tokeniser itself cuts at special
tokens before anything else, so the pieces get the ids that they have in the whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from antiphon.conversation import AudioPart, ConversationMessage, ImagePart, Part, TextPart
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.files import REMEDY, read_json
from services.text.literal import SETTINGS_FILE, LiteralTokenizer, load_tokenizer, untruncated

TEMPLATE_FILE = "chat_template.json"

_MARK = "\ufdd0"
"""A noncharacter of Unicode: not for interchange, so no text needs it."""


class ChatTokenizer:
    """A checkpoint's chat template and tokeniser."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str | None) -> None:
        """`template` overrides the tokeniser's own when it is not None."""
        self.tokenizer = tokenizer
        self._template = template
        self._whole = untruncated(tokenizer)
        self._literal = LiteralTokenizer(tokenizer)
        self.bytes_per_id = self._literal.bytes_per_id
        special = self._literal.special
        longest_first = sorted(special, key=len, reverse=True)
        self._any_special = re.compile("|".join(map(re.escape, longest_first)))
        self._first = re.compile(
            "([" + "".join(re.escape(each) for each in sorted({t[0] for t in special})) + "])"
        )

    def encode(self, messages: Sequence[ConversationMessage]) -> list[int]:
        """Prompt ids up to and including the assistant header that the reply follows.

        Raises `InvalidArgument` for messages that the template refuses.
        """
        texts = "".join(_text(message) for message in messages)
        if self._any_special.search(texts) is None:
            ids: list[int] = self._whole.encode(self._render(messages, marked=False)).ids
            return ids
        if _MARK in texts:
            raise InvalidArgument("messages: U+FDD0 is not a character", field="messages")
        return self._encode_pieces(self._render(messages, marked=True))

    def _render(self, messages: Sequence[ConversationMessage], *, marked: bool) -> str:
        """The chat template's text for the messages."""
        conversation: Any = [
            {"role": message.role, "content": self._content(message, marked=marked)}
            for message in messages
        ]
        try:
            rendered: Any = self.tokenizer.apply_chat_template(
                conversation,
                chat_template=self._template,
                add_generation_prompt=True,
                tokenize=False,
            )
        except TemplateError as error:
            raise InvalidArgument(
                f"messages: the chat template refuses them: {error}", field="messages"
            ) from error
        return str(rendered)

    def _content(self, message: ConversationMessage, *, marked: bool) -> str | list[dict[str, Any]]:
        """A message's content in the template's form: words alone are a string."""
        if all(isinstance(part, TextPart) for part in message.parts):
            return self._words(_text(message), marked=marked)
        return [self._part(part, marked=marked) for part in message.parts]

    def _part(self, part: Part, *, marked: bool) -> dict[str, Any]:
        """A part in the template's form."""
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
        """The text, with a mark after every character that can begin a special token."""
        return self._first.sub(rf"\1{_MARK}", text) if marked else text

    def _encode_pieces(self, rendered: str) -> list[int]:
        """Ids of a rendered prompt in which only the template's special tokens are whole."""
        ids: list[int] = []
        end = 0
        for match in self._any_special.finditer(rendered):
            ids += self._encode_literally(rendered[end : match.start()])
            ids.append(self._literal.special[match.group()])
            end = match.end()
        return ids + self._encode_literally(rendered[end:])

    def _encode_literally(self, piece: str) -> list[int]:
        """Ids of a piece without its marks; no id is a special one."""
        return self._literal.encode(piece.replace(_MARK, ""), field="messages")


def load_chat_tokenizer(model_dir: Path) -> ChatTokenizer:
    """The tokeniser and chat template in a checkpoint directory, from local files only.

    `chat_template.json` is where a processor's template lies, which Hugging Face's
    processor prefers to the tokeniser's. Raises `FailedPrecondition` without either, and
    without the tokeniser's vocabulary, instead of which transformers would make an empty one.
    """
    tokenizer = load_tokenizer(model_dir)
    path = model_dir / TEMPLATE_FILE
    template = read_json(path).get("chat_template") if path.is_file() else None
    if template is None and tokenizer.chat_template is None:
        raise FailedPrecondition(
            f"{model_dir}: there is no chat template, in chat_template.jinja, {TEMPLATE_FILE} or "
            f"{SETTINGS_FILE}; {REMEDY}"
        )
    return ChatTokenizer(tokenizer, template)


def text_bytes(messages: Sequence[ConversationMessage]) -> int:
    """How many bytes of UTF-8 the words of the messages take."""
    return sum(len(_text(message).encode()) for message in messages)


def _text(message: ConversationMessage) -> str:
    """All words of a message."""
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))
