"""Prepares the talker's prompts from the text and the voice in a request.

This module mirrors the vendor's `frontend_zero_shot`, `frontend_cross_lingual`,
`frontend_instruct2` and `frontend_sft`. It uses the texts from the vendor's example. The voice in a
request determines the mode:

- A recording with a transcript selects zero-shot mode.
- A recording without a transcript selects cross-lingual mode.
- A recording with an instruction selects instruct mode.
- A voice from the checkpoint selects SFT mode.

In zero-shot and instruct mode, the text is split into utterances. Streamed text is neither split
nor normalized. If the vendor does not define a prompt for streamed text in a mode, the system
prompt is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from antiphon.errors import InvalidArgument
from antiphon.pipelines.cosyvoice3 import MOST_CODES
from antiphon.pipelines.edges import PIECE_FIELD
from antiphon.values.chunk import Tensors
from antiphon.values.conversation import from_tensors
from antiphon_services.cosyvoice3.talker.growing_text import GrowingText
from antiphon_services.cosyvoice3.talker.interleaved import InterleavedText, MixRatio, Opening
from antiphon_services.cosyvoice3.talker.prompt import SpeechPrompt, Voice, make_utterance
from antiphon_services.cosyvoice3.talker.reference import VoiceEncoder
from antiphon_services.cosyvoice3.talker.sentences import split_text
from antiphon_services.cosyvoice3.talker.tokenizer import END_OF_PROMPT
from antiphon_services.cosyvoice3.talker.voice_options import VoiceRequest
from antiphon_services.cosyvoice3.talker.voices import StoredVoice
from antiphon_services.text.literal import LiteralTokenizer
from antiphon_services.text.read_aloud import MESSAGES, most_json_bytes, text_to_read, too_long

SYSTEM = "You are a helpful assistant."

MOST_UTTERANCES = 64
"""The maximum number of utterances in a text, which corresponds to half an hour of speech."""

_NO_CODES = np.zeros(0, np.int32)


class UtteranceFrontEnd:
    """Creates the prompts for one checkpoint.

    `context_limit` is the maximum number of positions in an utterance.
    """

    def __init__(
        self,
        tokenizer: LiteralTokenizer,
        voices: Mapping[str, StoredVoice],
        encoder: VoiceEncoder,
        *,
        context_limit: int,
        mix: MixRatio,
    ) -> None:
        self._tokenizer = tokenizer
        self._mix = mix
        self._end_of_prompt = tokenizer.control[END_OF_PROMPT]
        self._voices = voices
        self._encoder = encoder
        self._context_limit = context_limit

    @property
    def voices(self) -> tuple[str, ...]:
        """The lowercase names of the voices in the checkpoint."""
        return tuple(self._voices)

    @property
    def max_text_bytes(self) -> int:
        """The maximum size of a text in bytes. A longer text cannot fit into the context."""
        return MOST_UTTERANCES * self._context_limit * self._tokenizer.bytes_per_id

    def check_size(self, json_bytes: int) -> None:
        """Raise `InvalidArgument` if the JSON of a message is too large for its text to fit."""
        if json_bytes > most_json_bytes(self.max_text_bytes):
            raise too_long(f"{json_bytes} bytes are too many", MESSAGES)

    def prepare(self, tensors: Tensors, request: VoiceRequest) -> SpeechPrompt:
        """Create the prompts for an `input` chunk.

        This takes a long time, so call it on a worker thread. Raises `InvalidArgument` if the input
        is not a single user message that consists of text, or if the prompt leaves no room for
        speech.
        """
        text = text_to_read(from_tensors(tensors))
        voice, prompt_text, codes = self._voice(request)
        # If nothing precedes the text, the vendor's code counts the system prompt as part of it.
        system = [] if prompt_text else self._system()
        if prompt_text:
            parts = [self._encode(each, MESSAGES) for each in split_text(text, self._count)]
        else:
            parts = [self._encode(text, MESSAGES)] if text.strip() else []
        if not parts:
            raise InvalidArgument(f"{MESSAGES}: contain nothing to say", field=MESSAGES)
        if len(parts) > MOST_UTTERANCES:
            raise too_long(
                f"the text has {len(parts)} parts of about {len(text) // len(parts)} "
                f"characters; the maximum is {MOST_UTTERANCES} parts",
                MESSAGES,
            )
        utterances = [
            make_utterance(
                prompt_text,
                [*system, *part],
                codes,
                least_draws=math.ceil(request.least_codes * len(part)),
                most_codes=MOST_CODES - len(voice.codes),
                context_limit=self._context_limit,
            )
            for part in parts
        ]
        if not all(each.most_draws for each in utterances):
            longest = max(len(each.ids) for each in utterances)
            raise too_long(
                f"the text takes {longest} positions, which leaves no room for speech within "
                f"the context limit of {self._context_limit}",
                MESSAGES,
            )
        return SpeechPrompt(voice, utterances)

    def check_pieces(self, count: int) -> None:
        """Raise `InvalidArgument` if `count` bytes of streamed text cannot fit into the context."""
        if count > self._context_limit * self._tokenizer.bytes_per_id:
            raise too_long(f"{count} bytes of text are too many", PIECE_FIELD)

    def growing_text(self) -> GrowingText:
        """Create the state for streamed text."""
        return GrowingText(partial(self._encode, field=PIECE_FIELD), self._tokenizer.written)

    def open(self, request: VoiceRequest) -> InterleavedText:
        """Create the prompt that precedes streamed text.

        This takes a long time, so call it on a worker thread. Raises `InvalidArgument` if the
        prompt leaves no room for speech.
        """
        voice, prompt_text, codes = self._voice(request)
        prompt_text = prompt_text or self._system()
        head = prompt_text.index(self._end_of_prompt) + 1
        if len(prompt_text) + len(codes) + self._mix.text >= self._context_limit:
            raise too_long(
                f"the voice takes {len(prompt_text) + len(codes)} positions, which leaves no "
                f"room for speech within the context limit of {self._context_limit}",
                "options.reference_audio",
            )
        opening = Opening(
            voice,
            head=prompt_text[:head],
            heard=prompt_text[head:],
            codes=codes.tolist(),
            most_codes=MOST_CODES - len(voice.codes),
            least_codes=request.least_codes,
        )
        return InterleavedText(opening, self._mix, self._context_limit)

    def _voice(self, request: VoiceRequest) -> tuple[Voice, list[int], np.ndarray]:
        """Return the voice, and the transcript and codes of its recording for the talker's
        prompt.
        """
        if request.reference is None:
            stored = self._voices[request.name]
            codes = stored.voice.codes if stored.prompt_text else _NO_CODES
            return stored.voice, list(stored.prompt_text), codes
        voice = self._encoder.voice(request.reference)
        if request.instruction:
            field = "options.instruction"
            asked = self._encode(f"{SYSTEM} {request.instruction}", field)
            return voice, [*asked, self._end_of_prompt], _NO_CODES
        if request.reference_text:
            heard = self._encode(request.reference_text, "options.reference_text")
            return voice, [*self._system(), *heard], voice.codes
        return voice, [], _NO_CODES

    def _system(self) -> list[int]:
        return [*self._encode(SYSTEM, MESSAGES), self._end_of_prompt]

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, field=MESSAGES))

    def _encode(self, text: str, field: str) -> list[int]:
        return self._tokenizer.encode(text, field=field)
