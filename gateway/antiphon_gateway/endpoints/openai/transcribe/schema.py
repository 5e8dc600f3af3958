"""OpenAI's messages of `/v1/audio/transcriptions`, as far as they are read or written here."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.values.sampling import SamplingRequest
from antiphon_gateway.endpoints.http.fields import or_all, or_unset
from antiphon_gateway.endpoints.http.form_body import FormFile
from antiphon_gateway.endpoints.http.language import Language
from antiphon_gateway.endpoints.http.transcription_usage import DurationUsage, TokensUsage


class TranscriptForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a transcription and a translation have: `prompt` is context of the recording."""

    file: FormFile
    model: str
    prompt: str | None = None
    response_format: str = "json"
    temperature: float | None = None
    stream: bool | None = None
    # vLLM's.
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_completion_tokens: int | None = None

    def sampling(self, wanted: str) -> SamplingRequest:
        """Return the sampling of the text, which an answer in the format `wanted` needs."""
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
    """A request. `language` is that of the recording, `prompt` what else is known of it."""

    language: Language | None = None
    timestamp_granularities: tuple[str, ...] = msgspec.field(
        default=(), name="timestamp_granularities[]"
    )
    # OpenAI's for what no model says here: see request.UNSUPPORTED.
    include: tuple[str, ...] = msgspec.field(default=(), name="include[]")
    chunking_strategy: str | None = None
    keywords: tuple[str, ...] = msgspec.field(default=(), name="keywords[]")
    languages: tuple[str, ...] = msgspec.field(default=(), name="languages[]")
    known_speaker_names: tuple[str, ...] = msgspec.field(default=(), name="known_speaker_names[]")
    known_speaker_references: tuple[str, ...] = msgspec.field(
        default=(), name="known_speaker_references[]"
    )


class TranscriptionSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the transcript. Times are seconds of the recording, `tokens` the model's ids.

    `avg_logprob` is the mean log probability of the tokens. `seek` and `no_speech_prob`, which
    Whisper has and the model does not report, are 0.
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
    """The text. What follows it comes with `verbose_json`; `language` is what the client said.

    There is one segment, over the whole recording, and there are no words: the model reports no
    times.
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
    """The end, with the whole text."""

    text: str
    usage: TokensUsage
