"""Prepares the talker's prompt from the text in a request.

Tokenization follows the vendor's package. The text is an assistant turn, and so is the transcript
of a recording, while the instruction is a user turn. As in the package, the role and the text after
it are tokenized together. Unlike in the package, text is never tokenized as control tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.errors import InvalidArgument
from antiphon.values.chunk import Tensors
from antiphon.values.conversation import from_tensors
from antiphon_services.qwen3_tts.talker.prompt import (
    ROLE_ROWS,
    Clone,
    Prompt,
    SpeechIds,
    SpeechRequest,
    make_prompt,
)
from antiphon_services.qwen3_tts.talker.reference import ReferenceEncoder
from antiphon_services.qwen3_tts.talker.voice_options import VoiceOptions
from antiphon_services.text.literal import LiteralTokenizer
from antiphon_services.text.read_aloud import MESSAGES, most_json_bytes, text_to_read, too_long

_REFERENCE = "options.reference_audio"


class SpeechFrontEnd:
    """Prepares prompts for a checkpoint. `encoder` is only set if the checkpoint can clone voices.

    `context_limit` is the maximum total number of positions for the prompt, the text and the
    frames.
    """

    def __init__(
        self,
        tokenizer: LiteralTokenizer,
        ids: SpeechIds,
        encoder: ReferenceEncoder | None,
        *,
        context_limit: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._ids = ids
        self._encoder = encoder
        self._context_limit = context_limit
        self._control = {ids.im_start, ids.im_end, ids.tts_bos, ids.tts_eos, ids.tts_pad}

    @property
    def max_text_bytes(self) -> int:
        """The maximum size, in bytes, of a text that can fit."""
        return self._context_limit * self._tokenizer.bytes_per_id

    def check_size(self, json_bytes: int) -> None:
        """Raise `InvalidArgument` if a message's JSON is so large that its text can't fit."""
        if json_bytes > most_json_bytes(self.max_text_bytes):
            raise self._too_long(f"{json_bytes} bytes", MESSAGES)

    def prepare(self, tensors: Tensors, manner: VoiceOptions) -> Prompt:
        """Return the prompt for an `input` chunk. This takes a long time, so it should run on a
        worker thread.

        Raises `InvalidArgument` if the input is anything other than a single user message of text,
        or if the prompt doesn't leave any positions for frames.
        """
        said = text_to_read(from_tensors(tensors))
        if (size := len(said.encode())) > self.max_text_bytes:
            raise self._too_long(f"{size} bytes of text", MESSAGES)
        role, text = self._turn(said, MESSAGES)
        instruction: list[int] = []
        if manner.instruction:
            instruction = self._encode(f"user\n{manner.instruction}", "options.instruction")
            closing = self._encode("\n", "options.instruction")
            instruction = [self._ids.im_start, *instruction, self._ids.im_end, *closing]
        request = SpeechRequest(
            role=role,
            text=text,
            instruction=instruction,
            voice=manner.voice,
            language=manner.language,
            clone=self._clone(manner, len(text)),
            whole_text=manner.whole_text,
        )
        prompt = make_prompt(request, self._ids)
        if (count := prompt.positions) >= self._context_limit:
            raise self._too_long(f"{count} positions", MESSAGES)
        return prompt

    def _clone(self, manner: VoiceOptions, text_ids: int) -> Clone | None:
        """Return the voice from the request's recording. Its frames are only encoded if they
        fit.
        """
        samples = manner.reference
        if samples is None or self._encoder is None:
            return None
        if not manner.reference_text:
            return Clone(self._encoder.vector(samples))
        _, text = self._turn(manner.reference_text, "options.reference_text")
        frames = self._encoder.count(samples)
        if frames + len(text) + text_ids >= self._context_limit:
            raise self._too_long(f"{frames} frames and {len(text)} positions of text", _REFERENCE)
        return Clone(self._encoder.vector(samples), self._encoder.frames(samples), text)

    def _turn(self, text: str, field: str) -> tuple[Sequence[int], Sequence[int]]:
        """Return the IDs of an assistant turn's header and text, without the end of the turn.

        As in the vendor's package, the header always consists of the first `ROLE_ROWS` IDs, even if
        the tokenizer merges the header's line break with one at the beginning of the text.
        """
        ids = [self._ids.im_start, *self._encode(f"assistant\n{text}", field)]
        return ids[:ROLE_ROWS], ids[ROLE_ROWS:]

    def _encode(self, text: str, field: str) -> list[int]:
        ids = self._tokenizer.encode(text, field=field)
        if not self._control.isdisjoint(ids):
            raise InvalidArgument(f"{field}: contains the text of a control token", field=field)
        return ids

    def _too_long(self, what: str, field: str) -> InvalidArgument:
        return too_long(
            f"{what} leave no room for speech within the context limit of {self._context_limit} "
            "positions",
            field,
        )
