"""What families to come need, with engines without models behind the real runtime and gateway."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

import antiphon
from antiphon.deployment.stage_config import TransportName
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.graph import CLIENT, VARIES, Edge, Pipeline, StageSpec, TensorSpec
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, LoadedStage
from antiphon.values.chunk import Tensor, concatenate
from antiphon.values.segment import SegmentKey
from tests.integration.families import (
    IDS,
    INPUT,
    PER_CHARACTER,
    RATE_HZ,
    SAMPLES,
    STOP,
    TEXT,
    UTF8,
    asked,
    repeats,
    served,
)
from tests.integration.scripted_engine import Chunks, Script, facts, loaded

AUDIO = Edge("audio", "voice", (CLIENT,), "sample", (SAMPLES,), "samples", governed=True)


def sounds_of(text: str) -> Tensor:
    """Every character for a hundredth of a second, by its code point."""
    return np.repeat(np.array([ord(c) % 997 / 1000 for c in text], np.float32), PER_CHARACTER)


def pcm16_of(text: str) -> bytes:
    return np.rint(sounds_of(text) * 32767).astype("<i2").tobytes()


def reads_text(key: SegmentKey, chunks: Chunks) -> Iterator[EngineEvent | None]:
    """Sounds of the characters that come on `text`, whose ids it checks, as they come."""
    said, finished = 0, False
    while not finished:
        while not chunks:
            yield None
        chunk = chunks.popleft()
        finished = chunk.segment_finished
        if chunk.tensors:
            assert chunk.position == said
            text = chunk.tensors["utf8"].tobytes().decode()
            assert chunk.tensors["ids"].tolist() == [ord(character) for character in text]
            yield Emitted(key, "audio", said * PER_CHARACTER, {"samples": sounds_of(text)})
            said += len(text)
    yield Emitted(key, "audio", said * PER_CHARACTER, finish_reason=STOP)
    yield Completed(key, STOP, said, said * PER_CHARACTER)


READS_TEXT = Pipeline(
    name="reads-text",
    architectures=(),
    stages=(StageSpec("mind", samples=True), StageSpec("voice")),
    edges=(
        Edge("input", CLIENT, ("mind",), "message", (INPUT,), "messages"),
        Edge("text", "mind", (CLIENT, "voice"), "token", (IDS, UTF8), "ids", pace_s=0.01),
        AUDIO,
    ),
)


def text_readers(sample_rate_hz: int = RATE_HZ) -> dict[str, LoadedStage]:
    return {
        "mind": loaded(repeats, facts("to-come")),
        "voice": loaded(reads_text, facts("to-come", sample_rate_hz=sample_rate_hz), "text"),
    }


async def test_text_goes_to_the_client_and_to_a_stage_that_speaks_it_at_44_khz() -> None:
    async with served(READS_TEXT, text_readers()) as family:
        answer = await family.client.generate(TEXT, include_ids=True).collect()
        assert (answer.text, answer.pcm16) == (TEXT, pcm16_of(TEXT))
        assert answer.sample_rate_hz == RATE_HZ
        assert answer.audio_s == pytest.approx(len(TEXT) / 100)
        assert answer.usage.completion_tokens == len(TEXT)
        # It is not made of codec frames: only its length tells how much there is.
        assert answer.usage.completion_audio_frames == 0
        assert answer.reports["voice"].output_positions == len(TEXT) * PER_CHARACTER
        wanted = {"modalities": ["text", "audio"], "audio": {"format": "wav"}}
        whole = (await family.chat(**wanted)).json()
        audio = whole["choices"][0]["message"]["audio"]
        assert audio["transcript"] == TEXT
        with wave.open(io.BytesIO(base64.b64decode(audio["data"]))) as file:
            assert (file.getframerate(), file.getnchannels()) == (RATE_HZ, 1)
            assert file.readframes(file.getnframes()) == pcm16_of(TEXT)
        assert whole["usage"]["completion_tokens_details"]["audio_tokens"] == 0


@pytest.mark.parametrize(("output", "voiced"), [("text", 0), ("audio", 1)])
async def test_text_goes_where_the_wanted_output_needs_it(output: str, voiced: int) -> None:
    async with served(READS_TEXT, text_readers()) as family:
        answer = await family.client.generate(TEXT, modalities=[output]).collect()
        assert answer.text == (TEXT if output == "text" else "")
        assert answer.pcm16 == (b"" if output == "text" else pcm16_of(TEXT))
        assert len(answer.reports) == 1 + voiced
        assert len(family.stages["mind"].stage.outgoing_links()) == voiced


async def test_audio_without_frames_runs_no_further_ahead_than_its_seconds() -> None:
    """A window of three characters' audio: it ends only if the client's credit goes by samples."""
    async with served(READS_TEXT, text_readers(), max_ahead_seconds=0.03) as family:
        heard, lengths = b"", []
        async for event in family.client.generate(TEXT, modalities=["audio"]):
            if isinstance(event, antiphon.AudioDelta):
                assert event.first_sample == len(heard) // 2
                heard += event.pcm16
                lengths.append(len(event.pcm16) // 2)
        assert heard == pcm16_of(TEXT)
        assert len(lengths) > 1


async def test_audio_of_a_stage_that_tells_no_rate_is_refused() -> None:
    async with served(READS_TEXT, text_readers(sample_rate_hz=0)) as family:
        with pytest.raises(FailedPrecondition, match="generates audio but has no sample_rate_hz"):
            await family.client.generate(TEXT).collect()
        answer = await family.client.generate(TEXT, modalities=["text"]).collect()
        assert answer.text == TEXT


SPEECH = Edge(
    "speech",
    "mind",
    ("voice",),
    "speech token",
    (
        IDS,
        TensorSpec("prompt_ids", "int32", (VARIES,), optional=True),
        TensorSpec("speaker", "float32", (192,), optional=True),
        TensorSpec("mel", "float32", (VARIES, 80), optional=True),
    ),
    "ids",
    grouped=True,
    governed=True,
    primed=True,
)
SPEAKER = np.linspace(-1, 1, 192, dtype=np.float32)
# More than a chunk may be, and as many rows as the speaker's embedding has numbers.
LONG_MEL = np.arange(20_000 * 80, dtype=np.float32).reshape(-1, 80)
SHORT_MEL = LONG_MEL[:192]
PROMPT_IDS = np.arange(87, dtype=np.int32)
TOKENS = 40
VOICES = {
    "long": {"mel": LONG_MEL, "prompt_ids": PROMPT_IDS, "speaker": SPEAKER},
    "short": {"mel": SHORT_MEL, "prompt_ids": PROMPT_IDS, "speaker": SPEAKER},
    "plain": {"speaker": SPEAKER},
}


def conditions(voice: Mapping[str, Tensor], *, primes: bool) -> Script:
    """Sends a voice and then its tokens."""

    def play(key: SegmentKey, chunks: Chunks) -> Iterator[EngineEvent | None]:
        yield from asked(chunks)
        yield Emitted(key, "speech", 0, voice, prime=primes)
        for position in range(TOKENS):
            ids = np.array([position], np.int32)
            yield Emitted(key, "speech", position, {"ids": ids})
        yield Emitted(key, "speech", TOKENS, finish_reason=STOP)
        yield Completed(key, STOP, 1, TOKENS)

    return play


def hears(heard: list[Mapping[str, Tensor]]) -> Script:
    """Notes the voice that came before the first token; a token is a sample."""

    def play(key: SegmentKey, chunks: Chunks) -> Iterator[EngineEvent | None]:
        voice, ids, finished = list[Mapping[str, Tensor]](), 0, False
        while not finished:
            while not chunks:
                yield None
            chunk = chunks.popleft()
            finished = chunk.segment_finished
            if "ids" not in chunk.tensors:
                assert chunk.position == 0 or not chunk.tensors
                voice.append(chunk.tensors)
                continue
            if not ids:
                heard.append(concatenate(voice))
            tensor = chunk.tensors["ids"]
            assert tensor.tolist() == [*range(ids, ids + len(tensor))]
            yield Emitted(key, "audio", ids, {"samples": tensor.astype(np.float32) / 32767})
            ids += len(tensor)
        yield Emitted(key, "audio", ids, finish_reason=STOP)
        yield Completed(key, STOP, ids, ids)

    return play


@pytest.mark.parametrize("voice", VOICES)
@pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
@pytest.mark.parametrize("speech", [SPEECH, replace(SPEECH, grouped=False, primed=False)])
async def test_conditioning_of_several_tensors_comes_whole_before_the_first_token(
    voice: str, transport: TransportName, speech: Edge
) -> None:
    heard: list[Mapping[str, Tensor]] = []
    engines = {
        "mind": loaded(conditions(VOICES[voice], primes=speech.primed), facts("to-come")),
        "voice": loaded(hears(heard), facts("to-come", sample_rate_hz=RATE_HZ), "speech"),
    }
    family = replace(READS_TEXT, edges=(READS_TEXT.edges[0], speech, AUDIO))
    async with served(family, engines, transport, max_stage_ahead_positions=5) as running:
        answer = await running.client.generate(TEXT).collect()
        assert np.frombuffer(answer.pcm16, "<i2").tolist() == [*range(TOKENS)]
        assert answer.reports["voice"].input_positions == TOKENS
        (came,) = heard
        assert came.keys() == VOICES[voice].keys()
        for name, tensor in VOICES[voice].items():
            np.testing.assert_array_equal(came[name], tensor)
        (link,) = running.stages["mind"].stage.outgoing_links()
        if voice == "long":
            assert link.counts[f"chunks.{transport}"] >= 2
            assert link.counts[f"bytes.{transport}"] > LONG_MEL.nbytes
