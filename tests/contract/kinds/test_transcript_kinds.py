"""What subtitle tools and players ask transcriptions for."""

from __future__ import annotations

import re
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai.types.audio import TranscriptionVerbose

from antiphon.values.logprobs import TokenLogprob
from antiphon.values.segment import FinishReason
from antiphon.wire.logprobs import logprobs_to_tensors
from tests.contract.fake_stages import THINKER, Session
from tests.contract.served_gateway import MODEL, ServedGateway
from tests.contract.test_transcriptions import SAID, SECONDS, file, post

pytestmark = pytest.mark.asyncio(loop_scope="session")

SRT = f"1\n00:00:00,000 --> 00:00:00,250\n{SAID}\n\n"
VTT = f"WEBVTT\n\n00:00:00.000 --> 00:00:00.250\n{SAID}\n\n"


def says(text: str, logprobs: tuple[float, ...] = ()) -> Any:
    """A thinker that writes this, and the log probabilities of its tokens if asked for them."""

    async def think(session: Session) -> None:
        await session.opened()
        sampling = session.segment.sampling[THINKER]
        assert sampling.HasField("top_logprobs") == bool(logprobs)
        tokens = tuple(TokenLogprob(n, b"x", each) for n, each in enumerate(logprobs))
        tensors = {
            "ids": np.arange(len(logprobs), dtype=np.int32),
            "utf8": np.frombuffer(text.encode(), dtype=np.uint8),
            **logprobs_to_tensors(tokens),
        }
        await session.chunk("text", tensors, finish=FinishReason.STOP)
        await session.report(input_positions=5, output_positions=len(logprobs))

    return think


@pytest.mark.parametrize(
    "granularities", [None, ["segment"]], ids=["whisper's clients", "the AI SDK"]
)
async def test_verbose_json_has_a_segment_over_the_recording(
    served: ServedGateway, granularities: Any
) -> None:
    served.fakes[THINKER].script = says("ab" * 50, (-0.5, -1.5, float("-inf")))
    verbose = await served.openai.audio.transcriptions.create(
        model=MODEL,
        file=file(),
        response_format="verbose_json",
        temperature=0.5,
        timestamp_granularities=granularities or openai.omit,
    )
    TranscriptionVerbose.model_validate(verbose.model_dump(), strict=True)
    assert verbose.segments is not None
    (segment,) = verbose.segments
    assert segment.model_dump(exclude={"compression_ratio", "avg_logprob"}) == {
        "id": 0,
        "seek": 0,
        "start": 0.0,
        "end": SECONDS,
        "text": verbose.text,
        "tokens": [0, 1, 2],
        "temperature": 0.5,
        "no_speech_prob": 0.0,
    }
    assert segment.avg_logprob == pytest.approx((-0.5 - 1.5 - 9999) / 3)
    assert segment.compression_ratio > 5
    assert verbose.words is None


@pytest.mark.parametrize(("kind", "right"), [("srt", SRT), ("vtt", VTT), ("SRT", SRT)])
async def test_subtitles_have_a_cue_over_the_recording(
    served: ServedGateway, kind: Any, right: str
) -> None:
    said = await served.openai.audio.transcriptions.create(
        model=MODEL, file=file(), response_format=kind
    )
    assert said == right


@pytest.mark.parametrize(
    ("text", "srt", "vtt"),
    [
        ("a --> b", "a -> b", "a --&gt; b"),
        ("a <b> & c", "a <b> & c", "a &lt;b&gt; &amp; c"),
        ("\n a \r\n\n\u2028 b\n", "a\nb", "a\nb"),
    ],
)
async def test_no_text_ends_a_cue(served: ServedGateway, text: str, srt: str, vtt: str) -> None:
    served.fakes[THINKER].script = says(text)
    for kind, cue in (("srt", srt), ("vtt", vtt)):
        answer = await post(served, response_format=kind)
        times, _, said = answer.text.partition(" --> ")[2].partition("\n")
        assert re.fullmatch(r"00:00:00[,.]250", times)
        assert said == cue + "\n\n"


async def test_an_empty_transcript_has_no_segment(served: ServedGateway) -> None:
    served.fakes[THINKER].script = says(" \n")
    assert (await post(served, response_format="srt")).text == ""
    assert (await post(served, response_format="vtt")).text == "WEBVTT\n\n"
    served.fakes[THINKER].script = says(" \n", (-0.5,))
    assert (await post(served, response_format="verbose_json")).json()["segments"] == []


@pytest.mark.parametrize(
    ("fields", "param", "remedy"),
    [
        ({"timestamp_granularities[]": ["segment", "word"]}, "timestamp_granularities", "segment"),
        ({"timestamp_granularities": "word"}, "timestamp_granularities", "leave it out"),
        ({"timestamp_granularities[]": "page"}, "timestamp_granularities", "segment, word"),
        ({"response_format": "diarized_json"}, "response_format", "vtt"),
        ({"response_format": "srt", "stream": "true"}, "response_format", "stream"),
    ],
)
async def test_times_that_there_are_none_of_are_refused_with_a_remedy(
    served: ServedGateway, fields: dict[str, Any], param: str, remedy: str
) -> None:
    answer: httpx.Response = await post(served, **({"response_format": "verbose_json"} | fields))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert remedy in error["message"]
