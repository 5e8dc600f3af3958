"""From the text and the voice of a request to the prompt of the talker.

Mirrors `speech_generation` of the vendor's example: a request by a recording and what it says
continues the recording, one by the recording alone has its speaker, and a caption describes the
voice. A caption without a recording leaves the speaker open.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.chunk import Tensors
from antiphon.conversation import from_tensors
from antiphon.errors import InvalidArgument
from antiphon_services.ming_tts.talker.caption import caption_of
from antiphon_services.ming_tts.talker.prompt import LatentPrompt, make_prompt
from antiphon_services.ming_tts.talker.reference import ReferenceVoiceEncoder
from antiphon_services.ming_tts.talker.voice_options import MingVoiceRequest
from antiphon_services.text.literal import LiteralTokenizer
from antiphon_services.text.read_aloud import MESSAGES, text_to_read

# Most bytes of JSON for one of text, and of what is around the text.
JSON_ESCAPE, JSON_AROUND = 6, 256


class LatentFrontEnd:
    """Makes prompts for one checkpoint; `context_limit` counts the positions of a segment."""

    def __init__(
        self,
        tokenizer: LiteralTokenizer,
        voices: Sequence[str],
        encoder: ReferenceVoiceEncoder,
        *,
        context_limit: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._context_limit = context_limit
        self.voices = tuple(each.lower() for each in voices)

    @property
    def max_text_bytes(self) -> int:
        """No text of more bytes can fit; one of fewer need not."""
        return self._context_limit * self._tokenizer.bytes_per_id

    def check_size(self, json_bytes: int) -> None:
        """Raise `InvalidArgument` for a message whose JSON is larger than any that fits."""
        if json_bytes > JSON_ESCAPE * self.max_text_bytes + JSON_AROUND:
            raise _too_long(f"{json_bytes} bytes are too many")

    def prepare(self, tensors: Tensors, request: MingVoiceRequest) -> LatentPrompt:
        """The prompt of an `input` chunk. Takes long: for a thread beside the engine's.

        Raises `InvalidArgument` for anything but one user message of text, and for what leaves no
        room for speech.
        """
        text = text_to_read(from_tensors(tensors))
        if not text.strip():
            raise InvalidArgument(f"{MESSAGES}: there is nothing to say", field=MESSAGES)
        reference = request.reference
        prompt = make_prompt(
            self._encode,
            self._tokenizer.control,
            text,
            voice=None if reference is None else self._encoder.voice(reference),
            reference_text=request.reference_text,
            instruction=caption_of(request.caption) if request.caption else None,
            nameless=bool(request.caption),
        )
        if len(prompt.ids) > self._context_limit:
            raise _too_long(
                f"{len(prompt.ids)} positions leave no room for speech within the context limit of "
                f"{self._context_limit}"
            )
        return prompt

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, field=MESSAGES)


def _too_long(what: str) -> InvalidArgument:
    return InvalidArgument(f"{MESSAGES}: {what}; shorten it", field=MESSAGES)
