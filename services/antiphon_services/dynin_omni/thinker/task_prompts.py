"""Builds the prompts of the vendor's tasks as token IDs. This module doesn't import torch.

Each layout is taken from a script in the vendor's `validation` directory, except for the layout of
spoken answers, which is taken from `UniversalPrompting`. Padding on the left is omitted, because no
position attends to it and only relative positions matter. Prompts for editing an image keep their
padding, because it is between the image and the text. The vendor's code picks an instruction such
as "Transcribe the given audio." at random, whereas this module always uses the first one in the
vendor's list.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from antiphon.errors import InvalidArgument
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import (
    AudioPart,
    Conversation,
    ConversationMessage,
    ImagePart,
    TextPart,
)
from antiphon.values.options import DIALOGUE, IMAGE, SPEECH, TASK, TRANSCRIPTION
from antiphon_services.dynin_omni.thinker.task_request import AnswerRequest
from antiphon_services.dynin_omni.thinker.task_tokens import TaskTokens
from antiphon_services.text.chat import check_no_tools
from antiphon_services.text.literal import LiteralTokenizer

MESSAGES = "messages"
TRANSCRIBE = "Transcribe the given audio."
READ_ALOUD = "Generate speech for the given text."
SOURCE_SIDE = 21
"""The side length, in tokens, of an image that the user attaches. This corresponds to 336
pixels.
"""


PADDED_TEXT = 129
"""The length to which the text is padded on the left in prompts that edit an image."""


class AnswerKind(enum.Enum):
    """The type of content that the tokens of an answer represent."""

    TEXT = "text"
    SPEECH = "speech"
    IMAGE = "image"


@dataclass(frozen=True, slots=True)
class TaskMode:
    """The vendor's generation parameters for a task.

    An answer has `count` positions, which are drawn in blocks of `block` positions. The number of
    positions in an image depends on its size, and all of them are drawn as one block.
    """

    kind: AnswerKind
    steps: int
    temperature: float
    guidance: float
    count: int = 0
    block: int = 0


CHAT = TaskMode(AnswerKind.TEXT, 128, 1.0, 0.0, 512, 128)
SHOWN = TaskMode(AnswerKind.TEXT, 512, 0.0, 0.0, 1024, 1024)
HEARD = TaskMode(AnswerKind.TEXT, 256, 0.0, 0.0, 128, 2)
SPOKEN = TaskMode(AnswerKind.SPEECH, 383, 1.0, 2.5, 383, 128)
DRAWN = TaskMode(AnswerKind.IMAGE, 20, 1.0, 3.5)
CHANGED = TaskMode(AnswerKind.IMAGE, 64, 1.0, 3.5)


@dataclass(frozen=True, slots=True)
class MaskedPrompt:
    """The tokens before the answer (`ids`) and after it (`after`).

    `unguided` contains the tokens before the second copy of the answer, which is computed if
    guidance is enabled. `count` is the number of positions in an image, or 0 for other answers.
    `heard` and `seen` are the numbers of positions that recordings and images occupy. No position
    attends to tokens with the ID `padding`.
    """

    mode: TaskMode
    ids: Sequence[int]
    unguided: Sequence[int]
    after: Sequence[int] = ()
    count: int = 0
    heard: int = 0
    seen: int = 0
    padding: int | None = None

    @property
    def positions(self) -> int:
        """The number of tokens that positions can attend to."""
        return sum(each != self.padding for each in (*self.ids, *self.after))


class MaskedPromptFactory:
    """Creates prompts for one checkpoint.

    `hear` converts a recording to speech units, which it returns as a uint16 array of shape [n].
    `look` converts an image file to image tokens for a given number of tokens per side. It returns
    a uint16 array of shape [side²]. Both functions take a long time. `sides` maps image sizes in
    pixels to the number of tokens per side. The first size is the default.
    """

    def __init__(
        self,
        tokens: TaskTokens,
        text: LiteralTokenizer,
        hear: Callable[[Tensor], Tensor],
        look: Callable[[Tensor, int, str], Tensor],
        sides: Mapping[str, int],
    ) -> None:
        self._tokens, self._text = tokens, text
        self._hear, self._look = hear, look
        self._sides = sides

    def make(self, said: Conversation, request: AnswerRequest) -> MaskedPrompt:
        """Create the prompt for a conversation.

        Raises `InvalidArgument` if the task does not support a message, and `NotImplementedYet` if
        the conversation includes tools.
        """
        check_no_tools(said.messages, said.tools)
        if said.template:
            raise InvalidArgument(
                "template: this model's template has no variables; leave them out", field="template"
            )
        if request.task == IMAGE:
            return self._image(said, request)
        if request.task == SPEECH:
            return self._speech(_the_message(said, "speech"))
        if request.task == TRANSCRIPTION or said.recordings:
            return self._heard(said, request)
        if request.speaks:
            raise InvalidArgument(
                f"options.{TASK}: only recordings can be answered with speech; set it to "
                f"{SPEECH} to have the text read aloud, or request text",
                field=f"options.{TASK}",
            )
        return self._shown(said) if said.images else self._chat(said.messages)

    def _chat(self, messages: Sequence[ConversationMessage]) -> MaskedPrompt:
        """Return the prompt for a text conversation."""
        if not messages or messages[-1].role != "user":
            raise InvalidArgument(
                f"{MESSAGES}: the last message must be a user message", field=MESSAGES
            )
        ids = [self._tokens.text_start]
        for index, message in enumerate(messages):
            text = _text_of(message).strip()
            ids += self._turn(message.role, text, f"{MESSAGES}[{index}]")
        return self._answered(CHAT, [*ids, *self._header("assistant")])

    def _shown(self, said: Conversation) -> MaskedPrompt:
        """Return the prompt for a question about an image."""
        tokens, message = self._tokens, _the_message(said, "an answer about an image")
        seen = self._source(said, message)
        asked = self._asked(_text_of(message), MESSAGES)
        ids = [tokens.mmu, *self._framed(seen), tokens.text_start, *asked]
        return self._answered(SHOWN, ids, seen=len(seen))

    def _heard(self, said: Conversation, request: AnswerRequest) -> MaskedPrompt:
        """Return the prompt for transcribing or answering a recording."""
        tokens, message = self._tokens, _the_message(said, "an answer to a recording")
        parts = [each for each in message.parts if not isinstance(each, TextPart)]
        if len(parts) != 1 or not isinstance(parts[0], AudioPart):
            raise InvalidArgument(
                f"{MESSAGES}: must contain exactly one recording and no image, got {len(parts)} "
                "attachments",
                field=MESSAGES,
            )
        text = _text_of(message)
        units = [tokens.first_unit + int(each) for each in self._units(said.recordings[0])]
        if request.task == DIALOGUE and request.speaks:
            if text.strip():
                raise InvalidArgument(
                    f"{MESSAGES}: a spoken answer is only possible if the message contains "
                    "nothing but a recording; leave the text out, or request text",
                    field=MESSAGES,
                )
            ids = [
                tokens.s2s,
                *self._header("user"),
                tokens.soa,
                *units,
                tokens.eoa,
                tokens.turn_end,
                *self._header("assistant"),
                tokens.soa,
            ]
            return MaskedPrompt(SPOKEN, ids, ids, heard=len(units))
        if request.task == DIALOGUE and not text.strip():
            raise InvalidArgument(
                f"{MESSAGES}: add a text that specifies what to do with the recording, set "
                f"options.{TASK} to {TRANSCRIPTION}, or request audio",
                field=MESSAGES,
            )
        if request.task == TRANSCRIPTION:
            text = "\n".join([TRANSCRIBE, *([text] if text.strip() else [])])
        ids = [tokens.s2t, tokens.soa, *units, tokens.eoa, *self._asked(text, MESSAGES)]
        return self._answered(HEARD, ids, heard=len(units))

    def _speech(self, message: ConversationMessage) -> MaskedPrompt:
        """Return the prompt for reading text aloud."""
        text, tokens = _only_text(message, "read aloud"), self._tokens
        asked = self._asked(f"{READ_ALOUD}\n{text}", MESSAGES)
        ids = [tokens.t2s, tokens.text_start, *asked, tokens.text_end, tokens.soa]
        return MaskedPrompt(SPOKEN, ids, ids)

    def _image(self, said: Conversation, request: AnswerRequest) -> MaskedPrompt:
        """Return the prompt for generating an image from text, or for editing an image."""
        tokens, message = self._tokens, _the_message(said, "an image")
        seen: list[int] = []
        begins = [tokens.t2i]
        if said.images:
            seen = self._source(said, message)
            begins = [tokens.i2i, *self._framed(seen)]
        elif any(not isinstance(each, TextPart) for each in message.parts):
            raise InvalidArgument(
                f"{MESSAGES}: to generate an image, send a text and at most one image",
                field=MESSAGES,
            )
        text = _text_of(message)
        if not text.strip():
            raise InvalidArgument(f"{MESSAGES}: describe the image to generate", field=MESSAGES)
        side = self._side(request.size, changed=bool(seen))
        framed = (
            [tokens.text_start, *said, tokens.text_end]
            for said in (self._text.encode(text, field=MESSAGES), [])
        )
        padded = PADDED_TEXT if seen else 0
        ids, unguided = (
            [*begins, *[tokens.ipad] * (padded - len(each)), *each, tokens.soi] for each in framed
        )
        return MaskedPrompt(
            CHANGED if seen else DRAWN,
            ids,
            unguided,
            (tokens.eoi,),
            side * side,
            seen=len(seen),
            padding=tokens.ipad if seen else None,
        )

    def _side(self, size: str, *, changed: bool) -> int:
        """Return the number of tokens per side for an image size.

        Raises `InvalidArgument` if the size is not supported.
        """
        if not size:
            most = max(self._sides.values())
            return min(SOURCE_SIDE, most) if changed else most
        if size.casefold() not in self._sides:
            raise InvalidArgument(
                f"options.size: must be one of {', '.join(self._sides)}", field="options.size"
            )
        return self._sides[size.casefold()]

    def _answered(
        self, mode: TaskMode, ids: Sequence[int], *, heard: int = 0, seen: int = 0
    ) -> MaskedPrompt:
        """Return a prompt whose answer is text. Guidance compares it with a prompt of mask
        tokens.
        """
        unguided = [self._tokens.mask] * len(ids)
        return MaskedPrompt(mode, ids, unguided, heard=heard, seen=seen)

    def _turn(self, role: str, text: str, field: str) -> list[int]:
        tokens = self._tokens
        header = [tokens.header_start, *self._text.encode(role, field=field), tokens.header_end]
        return [*header, *self._text.encode(f"\n{text}", field=field), tokens.turn_end]

    def _header(self, role: str) -> list[int]:
        return self._turn(role, "", MESSAGES)[:-1]

    def _asked(self, text: str, field: str) -> list[int]:
        """Return the tokens of a user turn, followed by the header of its answer."""
        return [*self._turn("user", text, field), *self._header("assistant")]

    def _framed(self, image: Sequence[int]) -> list[int]:
        return [self._tokens.soi, *image, self._tokens.eoi]

    def _units(self, samples: Tensor) -> Tensor:
        """Convert the recording to speech units.

        Raises `InvalidArgument`, with the name of the recording, if it cannot be converted.
        """
        try:
            return self._hear(samples)
        except InvalidArgument as error:
            raise InvalidArgument(f"audio.0: {error.message}", field="audio.0") from error

    def _source(self, said: Conversation, message: ConversationMessage) -> list[int]:
        """Return the tokens of the only image in the message.

        Raises `InvalidArgument` if the message does not contain exactly one image.
        """
        shown = [each for each in message.parts if not isinstance(each, TextPart)]
        if len(shown) != 1 or not isinstance(shown[0], ImagePart):
            raise InvalidArgument(
                f"{MESSAGES}: must contain exactly one image and no recording, got {len(shown)} "
                "attachments",
                field=MESSAGES,
            )
        made = self._look(said.images[0], SOURCE_SIDE, "image.0")
        return [self._tokens.first_image + int(each) for each in made]


def _the_message(said: Conversation, what: str) -> ConversationMessage:
    """Return the only message of the conversation.

    The vendor's layouts support a single message. Raises `InvalidArgument` if there are more.
    """
    if len(said.messages) != 1 or said.messages[0].role != "user":
        raise InvalidArgument(
            f"{MESSAGES}: {what} needs exactly one user message, got {len(said.messages)}; "
            "leave the earlier ones out",
            field=MESSAGES,
        )
    return said.messages[0]


def _text_of(message: ConversationMessage) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def _only_text(message: ConversationMessage, why: str) -> str:
    """Return the text of the message. Raises `InvalidArgument` if it contains media or has no
    text.
    """
    text = _text_of(message)
    if any(not isinstance(part, TextPart) for part in message.parts) or not text.strip():
        raise InvalidArgument(f"{MESSAGES}: only text can be {why}", field=MESSAGES)
    return text
