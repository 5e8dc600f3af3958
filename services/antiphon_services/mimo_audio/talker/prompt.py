"""The talker's prompt, which consists of text positions and groups. This module doesn't import
torch.

It mirrors the prompts of the vendor's `MimoAudio`. Spoken dialogue, speech-to-text, text dialogue
and understanding share one layout, which contains the parts of all messages in order. Speech
synthesis and transcription have their own layouts. The vendor's code picks an instruction such as
"Please transcribe this audio file" at random, whereas this module always uses the first one in the
vendor's list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from antiphon.errors import InvalidArgument
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import AudioPart, Conversation, ConversationMessage, TextPart
from antiphon.values.sampling import Sampling
from antiphon_services.mimo_audio.talker.tokenizer import PromptTokenizer
from antiphon_services.mimo_audio.talker.voice_options import TaskRequest
from antiphon_services.text.read_aloud import text_to_read

MESSAGES = "messages"
TRANSCRIBE = "Please transcribe this audio file"
READ_ENGLISH, READ_CHINESE = "Please convert this text to speech", "请将这段文字转换为语音"
STYLE = "你需要根据指定的风格指令和文本内容来生成语音。"
STYLE_AND_VOICE = (
    "你需要根据指定的风格指令和文本内容来生成和语音prompt具有相同音色的语音。你的音色应该是："  # noqa: RUF001
)
VOICE = "Your voice should be:"
CHINESE = re.compile("[\u4e00-\u9fff]")
NO_THOUGHT, THOUGHT = "<think>\n\n</think>\n", "<think>\n"
USER, ASSISTANT, SYSTEM, END = (
    "<|im_start|>user\n",
    "<|im_start|>assistant\n",
    "<|im_start|>system\n",
    "<|im_end|>\n",
)
IN_A_ROW = 5
"""The number of consecutive text tokens, and of consecutive groups of frames, in an earlier spoken
answer. Text and groups alternate.
"""

Ids = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Draws:
    """The vendor's text sampling settings for one type of task."""

    temperature: float
    top_p: float = 1.0


READ_ALOUD = Draws(0.6)
SPOKEN = Draws(0.6, 0.95)
UNDERSTOOD = Draws(0.3, 0.95)
WRITTEN = Draws(0.4, 0.95)
TRANSCRIBED = Draws(0.0)


@dataclass(frozen=True, slots=True)
class TaskPrompt:
    """The positions of a prompt.

    `ids` is an int64 array of shape [n], and `codes` is a uint16 array of shape [n, group,
    channels], which contains empty codes at text positions. The answer is sampled with the settings
    in `draws`, unless the request overrides them, and ends with one of the tokens in `ends`.
    `heard` is the number of positions that recordings occupy. The last `known` positions belong to
    the answer.
    """

    ids: Ids
    codes: Codes
    ends: frozenset[int]
    draws: Draws
    heard: int
    known: int = 0

    def sampling(self, sampling: Sampling, given: Collection[str]) -> Sampling:
        """Return the sampling settings of the request.

        Settings that are not `given` in the request default to the settings of the task.
        """
        if "temperature" not in given:
            sampling = replace(sampling, temperature=self.draws.temperature)
        if "top_p" not in given:
            sampling = replace(sampling, top_p=self.draws.top_p)
        return sampling


Encode = Callable[[Tensor], Codes]
"""Encodes the samples of a recording to uint16 codes of shape [n * group, channels].

This takes a long time.
"""


class TaskPromptFactory:
    """Creates prompts for one checkpoint.

    `empty_codes` contains the codes of a text position. `context_limit` is the maximum number of
    positions.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        encode: Encode,
        empty_codes: Sequence[int],
        *,
        group: int,
        context_limit: int,
    ) -> None:
        self.tokenizer = tokenizer
        self._encode = encode
        self.empty: Codes = np.broadcast_to(
            np.array(empty_codes, np.uint16), (group, len(empty_codes))
        )
        self._context_limit = context_limit

    def dialogue(self, said: Conversation, request: TaskRequest, *, speaks: bool) -> TaskPrompt:
        """Create the prompt for an answer to a conversation. `speaks` is true for a spoken answer.

        Raises `InvalidArgument` if the conversation is not supported.
        """
        system, turns = _turns(said.messages)
        page = self._page()
        if request.reference is not None:
            page.layout(SYSTEM)
            page.layout(VOICE)
            page.clip(request.reference)
            page.layout(END)
        for index, turn in enumerate(turns):
            field = f"messages[{said.messages.index(turn)}]"
            page.layout(USER if turn.role == "user" else ASSISTANT)
            if system and not index:
                page.literal(system, "messages[0]")
                page.layout("\n\n")
            self._say(page, turn, said.recordings, field)
            page.layout(END)
        page.layout(ASSISTANT)
        last = turns[-1].parts
        if speaks:
            page.mark(self.tokenizer.ids.speech_start)
            return self._made(page, SPOKEN, speaks=True)
        page.layout(THOUGHT if request.thinking else NO_THOUGHT)
        heard = any(isinstance(each, AudioPart) for each in last)
        asked = any(isinstance(each, TextPart) for each in last)
        draws = (UNDERSTOOD if asked else SPOKEN) if heard else WRITTEN
        return self._made(page, draws, speaks=False)

    def speech(self, said: Conversation, request: TaskRequest) -> TaskPrompt:
        """Create the prompt for reading text aloud. Raises `InvalidArgument` if there is no
        text.
        """
        text = text_to_read(said)
        if not text.strip():
            raise InvalidArgument(f"{MESSAGES}: contain nothing to say", field=MESSAGES)
        asked = READ_CHINESE if CHINESE.search(text) else READ_ENGLISH
        if text.isupper() or text.islower():
            text = text.capitalize()
        page = self._page()
        styled = request.described or request.instruction
        if styled:
            page.layout(SYSTEM)
            page.layout(STYLE if request.reference is None else STYLE_AND_VOICE)
            if request.reference is not None:
                page.clip(request.reference)
            page.layout(END)
        if not request.described:
            style = f"({request.instruction})" if request.instruction else ""
            text = f"{asked}: {text}{style}"
        page.layout("<|im_start|>")
        page.literal(f"user\n{text}", MESSAGES)
        page.layout(END)
        page.layout(ASSISTANT + THOUGHT if styled else ASSISTANT)
        if not styled:
            page.mark(self.tokenizer.ids.speech_start)
        return self._made(page, READ_ALOUD, speaks=True)

    def transcription(self, said: Conversation) -> TaskPrompt:
        """Create the prompt for transcribing a recording.

        Additional text of the message follows the vendor's instruction. Raises `InvalidArgument` if
        there is not exactly one recording in one user message.
        """
        messages = said.messages
        if len(messages) != 1 or messages[0].role != "user" or len(said.recordings) != 1:
            raise InvalidArgument(
                f"{MESSAGES}: to transcribe a recording, send one user message with one recording",
                field=MESSAGES,
            )
        texts = [part.text for part in messages[0].parts if isinstance(part, TextPart)]
        page = self._page()
        page.layout(USER)
        page.clip(said.recordings[0], f"{MESSAGES}: audio.0")
        page.literal("\n".join([TRANSCRIBE, *(each for each in texts if each)]), MESSAGES)
        page.layout(END)
        page.layout(ASSISTANT)
        page.layout(NO_THOUGHT)
        return self._made(page, TRANSCRIBED, speaks=False)

    def _say(
        self,
        page: _Page,
        turn: ConversationMessage,
        recordings: Sequence[Tensor],
        field: str,
    ) -> None:
        """Add the parts of a turn.

        For an earlier spoken answer, the text and the speech are interleaved.
        """
        text = "".join(part.text for part in turn.parts if isinstance(part, TextPart))
        clips = [recordings[part.index] for part in turn.parts if isinstance(part, AudioPart)]
        if turn.role == "assistant" and clips:
            if len(clips) > 1 or not text:
                raise InvalidArgument(
                    f"{field}: an assistant message must contain its text and one recording of it",
                    field=MESSAGES,
                )
            page.spoken(self.tokenizer.literal(text, field), clips[0], field)
            return
        for part in turn.parts:
            if isinstance(part, AudioPart):
                page.clip(recordings[part.index], f"audio.{part.index}")
            elif isinstance(part, TextPart) and part.text:
                page.literal(part.text, field)

    def _page(self) -> _Page:
        return _Page(self.tokenizer, self._encode, self.empty)

    def _made(self, page: _Page, draws: Draws, *, speaks: bool) -> TaskPrompt:
        ids = self.tokenizer.ids
        ends = ids.ends | {ids.speech_end} if speaks else ids.ends
        if len(page.ids) > self._context_limit:
            raise InvalidArgument(
                f"{MESSAGES}: take {len(page.ids)} positions, which leaves no room for an "
                f"answer within the context limit of {self._context_limit}; shorten them",
                field=MESSAGES,
            )
        codes = np.concatenate(page.codes)
        heard = sum(len(each) for each in page.clips)
        return TaskPrompt(np.array(page.ids, np.int64), codes, ends, draws, heard)


class _Page:
    """The positions of a prompt that is being written."""

    def __init__(self, tokenizer: PromptTokenizer, encode: Encode, empty: Codes) -> None:
        self.ids: list[int] = []
        self.codes: list[Codes] = []
        self.clips: list[Codes] = []
        self._tokenizer, self._encode, self._empty = tokenizer, encode, empty

    def layout(self, text: str) -> None:
        self.mark(*self._tokenizer.layout(text))

    def literal(self, text: str, field: str) -> None:
        self.mark(*self._tokenizer.literal(text, field))

    def mark(self, *ids: int) -> None:
        self.ids += ids
        self.codes.append(np.broadcast_to(self._empty, (len(ids), *self._empty.shape)))

    def clip(self, samples: Tensor, field: str = "options.reference_audio") -> None:
        """Add a recording between its start and end tokens."""
        self.mark(self._tokenizer.ids.clip_start)
        self._groups(self._encoded(samples, field))
        self.mark(self._tokenizer.ids.clip_end)

    def spoken(self, text: Sequence[int], samples: Tensor, field: str) -> None:
        """Add a spoken answer, in which text tokens and groups alternate."""
        marks, groups = self._tokenizer.ids, self._encoded(samples, field)
        words = [*text]
        self.mark(marks.speech_start)
        pieces = [words[at : at + IN_A_ROW] for at in range(0, len(words), IN_A_ROW)]
        pieces[-1] = [*pieces[-1], marks.text_end]
        clips = [groups[at : at + IN_A_ROW] for at in range(0, len(groups), IN_A_ROW)]
        for number in range(max(len(pieces), len(clips))):
            if number < len(pieces):
                self.mark(*pieces[number])
            if number < len(clips):
                self._groups(clips[number])
        self.mark(marks.speech_end)

    def _encoded(self, samples: Tensor, field: str) -> Codes:
        """Encode a recording to groups of shape [n, group, channels]."""
        try:
            frames = self._encode(samples)
        except InvalidArgument as error:
            raise InvalidArgument(f"{field}: {error.message}", field=field) from error
        return frames.reshape(-1, *self._empty.shape)

    def _groups(self, groups: Codes) -> None:
        self.ids += [self._tokenizer.ids.group] * len(groups)
        self.codes.append(groups)
        self.clips.append(groups)


def _turns(
    messages: Sequence[ConversationMessage],
) -> tuple[str, Sequence[ConversationMessage]]:
    """Split the messages into the text of the system message and the turns.

    Raises `InvalidArgument` if a message is not supported.
    """
    system = ""
    if messages and messages[0].role == "system":
        if not all(isinstance(part, TextPart) for part in messages[0].parts):
            raise InvalidArgument(
                "messages[0]: a system message may only contain text", field=MESSAGES
            )
        system = "".join(part.text for part in messages[0].parts if isinstance(part, TextPart))
        messages = messages[1:]
    for index, message in enumerate(messages):
        if message.role not in ("user", "assistant"):
            raise InvalidArgument(
                f"{MESSAGES}: the role {message.role} is not supported here; this model accepts "
                "an optional system message, followed by user and assistant messages",
                field=MESSAGES,
            )
        if not index and message.role != "user" and system:
            raise InvalidArgument(
                f"{MESSAGES}: the system message becomes part of the user's first message; add "
                "a user message after it",
                field=MESSAGES,
            )
    if not messages or messages[-1].role != "user":
        raise InvalidArgument(
            f"{MESSAGES}: the last message must be a user message", field=MESSAGES
        )
    return system, messages
