"""Prepares the talker's prompts from the text and the voice in a request.

This module mirrors `speech_generation` in the vendor's example. A request with a recording and its
transcript continues the recording. A request with only a recording uses the speaker of the
recording. A caption describes the voice, but without a recording, it does not determine the
speaker.

In Ming-flash-omni, the name of a voice selects a recording in the checkpoint and its transcript. A
long text is split into utterances, each of which has its own prompt. Streamed text is split into
utterances in both layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from antiphon.errors import InvalidArgument
from antiphon.pipelines.edges import PIECE_FIELD
from antiphon.values.chunk import Tensors
from antiphon.values.conversation import from_tensors
from antiphon_services.ming_tts.talker.caption import caption_of
from antiphon_services.ming_tts.talker.prompt import (
    LatentPrompt,
    RecordedVoice,
    describes_music,
    make_prompt,
)
from antiphon_services.ming_tts.talker.reference import ReferenceVoiceEncoder
from antiphon_services.ming_tts.talker.utterances import ArrivingText, split_text
from antiphon_services.ming_tts.talker.voice_options import MingVoiceRequest
from antiphon_services.text.literal import LiteralTokenizer
from antiphon_services.text.read_aloud import MESSAGES, most_json_bytes, text_to_read, too_long
from antiphon_services.text.utf8_pieces import nothing_to_say

MOST_PIECES_BYTES = 64 << 10
"""The maximum size of streamed text in bytes, which corresponds to an hour of speech."""


@dataclass(frozen=True, slots=True)
class LatentPrompts:
    """The prompts of utterances in order.

    `last` is true if these are the last utterances of their text.
    """

    utterances: tuple[LatentPrompt, ...]
    last: bool = True


@dataclass(frozen=True, slots=True)
class PresetVoice:
    """A voice in the checkpoint. It consists of a recording and its transcript in `text`."""

    voice: RecordedVoice
    text: str


class LatentFrontEnd:
    """Creates prompts for one checkpoint.

    `context_limit` is the maximum number of positions in a segment. `voices` contains the names of
    the voices that the model was trained on. `stored` contains the voices of Ming-flash-omni by
    lowercase name. It is None for the other layout.
    """

    def __init__(
        self,
        tokenizer: LiteralTokenizer,
        voices: Sequence[str],
        encoder: ReferenceVoiceEncoder,
        *,
        context_limit: int,
        stored: Mapping[str, PresetVoice] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._context_limit = context_limit
        self._stored = stored
        self.voices = tuple(each.lower() for each in (voices if stored is None else stored))

    @property
    def max_text_bytes(self) -> int:
        """The maximum size of a text in bytes. A longer text can never fit, but a shorter one may
        not fit either.
        """
        return self._context_limit * self._tokenizer.bytes_per_id

    def check_size(self, json_bytes: int) -> None:
        """Raise `InvalidArgument` if the JSON of a message is too large for its text to fit."""
        if json_bytes > most_json_bytes(self.max_text_bytes):
            raise too_long(f"{json_bytes} bytes are too many", MESSAGES)

    def check_pieces(self, count: int) -> None:
        """Raise `InvalidArgument` if streamed text is larger than `MOST_PIECES_BYTES`."""
        if count > MOST_PIECES_BYTES:
            raise too_long(f"more than {MOST_PIECES_BYTES} bytes of text are too many", PIECE_FIELD)

    def prepare(self, tensors: Tensors, request: MingVoiceRequest) -> LatentPrompts:
        """Create the prompts for an `input` chunk.

        This takes a long time, so call it on a worker thread. Raises `InvalidArgument` if the input
        is not a single user message that consists of text, or if a prompt leaves no room for
        speech.
        """
        text = text_to_read(from_tensors(tensors))
        if not text.strip():
            raise InvalidArgument(f"{MESSAGES}: contain nothing to say", field=MESSAGES)
        # A description of music is not read aloud, so it is not divided.
        divided = self._stored is not None and not describes_music(text)
        return self._prompts(split_text(text) if divided else [text], request, MESSAGES)

    def prepare_piece(
        self,
        arriving: ArrivingText,
        utf8: bytes,
        request: MingVoiceRequest,
        *,
        last: bool,
        may_be_silent: bool,
    ) -> LatentPrompts:
        """Create the prompts of the utterances that a piece of text completes.

        This takes a long time. Raises `InvalidArgument` if a prompt leaves no room for speech, or
        if the text has no speakable content and `may_be_silent` is false, as well as the errors of
        `ArrivingText.take`.
        """
        texts = arriving.take(utf8, last=last)
        if last and arriving.silent and not may_be_silent:
            raise nothing_to_say()
        return replace(self._prompts(texts, request, PIECE_FIELD), last=last)

    def _prompts(
        self, texts: Sequence[str], request: MingVoiceRequest, field: str
    ) -> LatentPrompts:
        return LatentPrompts(tuple(self._prompt(text, request, field) for text in texts))

    def _prompt(self, text: str, request: MingVoiceRequest, field: str) -> LatentPrompt:
        voice, said = self._voice(request)
        prompt = make_prompt(
            partial(self._tokenizer.encode, field=field),
            self._tokenizer.control,
            text,
            voice=voice,
            reference_text=said,
            instruction=caption_of(request.caption) if request.caption else None,
            nameless=bool(request.caption),
            flash=self._stored is not None,
        )
        if len(prompt.ids) > self._context_limit:
            raise too_long(
                f"the prompt takes {len(prompt.ids)} positions, which leaves no room for speech "
                f"within the context limit of {self._context_limit}",
                field,
            )
        return prompt

    @property
    def stores_voices(self) -> bool:
        """Whether the name of a voice selects a recording."""
        return self._stored is not None

    def _voice(self, request: MingVoiceRequest) -> tuple[RecordedVoice | None, str]:
        """Return the recording to continue and its transcript."""
        if request.reference is not None:
            return self._encoder.voice(request.reference), request.reference_text
        if self._stored is not None and request.stored:
            stored = self._stored[request.stored]
            return stored.voice, stored.text
        return None, ""
