"""The parts of OpenAI's messages for `/v1/audio/transcriptions` that this gateway reads or
writes.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.values.sampling import SamplingRequest
from antiphon_gateway.endpoints.http.fields import or_all, or_unset
from antiphon_gateway.endpoints.http.form_body import FormFile
from antiphon_gateway.endpoints.http.language import Language
from antiphon_gateway.endpoints.http.transcription_usage import DurationUsage, TokensUsage


class TranscriptForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields that transcriptions and translations have in common. `prompt` provides context for
    the recording.
    """

    file: FormFile
    model: str
    prompt: str | None = None
    response_format: str = "json"
    temperature: float | None = None
    stream: bool | None = None
    # These are fields of vLLM.
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_completion_tokens: int | None = None

    def sampling(self, wanted: str) -> SamplingRequest:
        """Return the sampling settings for the text, including those that the response format
        `wanted` requires.
        """
        return SamplingRequest(
            temperature=self.temperature,
            top_k=or_all(self.top_k),
            top_p=self.top_p,
            repetition_penalty=self.repetition_penalty,
            seed=or_unset(self.seed),
            max_tokens=or_unset(self.max_completion_tokens),
            top_logprobs=0 if wanted == "verbose_json" else None,
        )


class TranscriptionForm(TranscriptForm, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request. `language` is the recording's language, and `prompt` provides further context."""

    language: Language | None = None
    timestamp_granularities: tuple[str, ...] = msgspec.field(
        default=(), name="timestamp_granularities[]"
    )
    # Fields of OpenAI's API for which no model here provides data. See request.UNSUPPORTED.
    include: tuple[str, ...] = msgspec.field(default=(), name="include[]")
    chunking_strategy: str | None = None
    keywords: tuple[str, ...] = msgspec.field(default=(), name="keywords[]")
    languages: tuple[str, ...] = msgspec.field(default=(), name="languages[]")
    known_speaker_names: tuple[str, ...] = msgspec.field(default=(), name="known_speaker_names[]")
    known_speaker_references: tuple[str, ...] = msgspec.field(
        default=(), name="known_speaker_references[]"
    )


class TranscriptionSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the transcript. Times are in seconds from the start of the recording, and `tokens`
    contains the model's token IDs.

    `avg_logprob` is the mean log probability of the tokens. `seek` and `no_speech_prob` are
    specific to Whisper and are always 0.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class Transcription(msgspec.Struct, frozen=True):
    """The response. All fields except for the text are only included in `verbose_json`. `language`
    is the client's value.

    The model reports no timestamps, so there is a single segment for the whole recording, and there
    are no words.
    """

    text: str
    usage: TokensUsage | DurationUsage
    task: str | UnsetType = UNSET
    language: str | UnsetType = UNSET
    duration: float | UnsetType = UNSET
    segments: tuple[TranscriptionSegment, ...] | UnsetType = UNSET


class TranscriptionDelta(
    msgspec.Struct, frozen=True, tag_field="type", tag="transcript.text.delta"
):
    """A piece of the text."""

    delta: str


class TranscriptionDone(msgspec.Struct, frozen=True, tag_field="type", tag="transcript.text.done"):
    """The end of the transcript, with the complete text."""

    text: str
    usage: TokensUsage
