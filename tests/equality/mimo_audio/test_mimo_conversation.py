"""A spoken conversation with MiMo-Audio: turns, transcripts, a turn heard while it is spoken."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import numpy as np
import pytest

import antiphon
from antiphon import SamplingRequest
from tests.equality.mimo_audio.mimo_asking import clips, spoken_pcm16
from tests.equality.mimo_audio.mimo_cases import CASES, RATE_HZ, SAMPLES_PER_FRAME
from tests.equality.mimo_audio.mimo_lab import Recorded
from tests.equality.mimo_audio.test_mimo_http import spoken_text
from tests.equality.read_aloud import SLOTS, Speakers

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

E = TypeVar("E")
SAMPLING = {"": SamplingRequest(temperature=0.0, max_tokens=40, seed=5)}
TIMEOUT_S = 240.0
ANSWERED = ("completed", "incomplete")
"""The second by the limit of positions."""


async def until(call: antiphon.AsyncConversationCall, kind: type[E]) -> tuple[E, list[object]]:
    """The next event of that kind, and those before it."""
    before: list[object] = []
    async with asyncio.timeout(TIMEOUT_S):
        async for event in call:
            if isinstance(event, kind):
                return event, before
            assert not isinstance(event, antiphon.CommandFailed), event
            before.append(event)
    raise AssertionError(f"no {kind.__name__} came")


async def test_turns_are_answered_in_speech_and_written_down(speakers: Speakers) -> None:
    """The transcript of a silent turn is that of its task, whoever else is answered."""
    async with speakers["marks"].converse(
        sampling=SAMPLING, transcripts=antiphon.TranscriptOptions()
    ) as call:
        for name in ("voice", "odd", "silence"):
            await call.send_audio(spoken_pcm16(clips()[name]), RATE_HZ)
            await call.commit_audio()
            await call.respond()
            written, before = await until(call, antiphon.TranscriptDone)
            done = [each for each in before if isinstance(each, antiphon.ResponseDone)]
            if not done:
                last, after = await until(call, antiphon.ResponseDone)
                done, before = [last], [*before, *after]
            assert done[0].response.status in ANSWERED, done[0].response.error
            assert written.usage.prompt_tokens > 0
            heard = [each for each in before if isinstance(each, antiphon.ResponseAudioDelta)]
            count = sum(len(each.pcm16) for each in heard) // 2
            assert count % SAMPLES_PER_FRAME == 0


async def test_conversations_side_by_side_keep_to_themselves(speakers: Speakers) -> None:
    """Each has as many turns, and the text of each is the same as alone: it is greedy."""

    async def talk(name: str) -> list[str]:
        said = []
        async with speakers["widths"].converse(sampling=SAMPLING, spoken=False) as call:
            for _ in range(2):
                await call.send_audio(spoken_pcm16(clips()[name]), RATE_HZ)
                await call.commit_audio()
                await call.respond()
                done, before = await until(call, antiphon.ResponseDone)
                assert done.response.status in ANSWERED, done.response.error
                said.append(
                    "".join(e.text for e in before if isinstance(e, antiphon.ResponseTextDelta))
                )
        return said

    names = ["voice", "odd", "silence"]
    alone = [await talk(name) for name in names]
    many = [names[at % len(names)] for at in range(SLOTS)]
    together = await asyncio.gather(*map(talk, many))
    for name, answers in zip(many, together, strict=True):
        assert answers[0] == alone[names.index(name)][0]


async def test_a_conversation_reads_aloud_by_its_options(
    speakers: Speakers, recorded: Recorded, mimo_labs: dict[str, Any]
) -> None:
    """The text is greedy and so are the codes: both are the vendor's."""
    case = next(each for each in CASES if each.name == "tts-instruct")
    assert case.instruct is not None
    sampling = {"": SamplingRequest(temperature=0.0, max_tokens=case.most)}
    options = {"task": "speech", "instruction": case.instruct, "code_temperature": 0.0}
    async with speakers["marks"].converse(sampling=sampling) as call:
        await call.add(case.text)
        await call.respond(options=options)
        done, before = await until(call, antiphon.ResponseDone)
        assert done.response.status in ANSWERED, done.response.error
        heard = [each for each in before if isinstance(each, antiphon.ResponseAudioDelta)]
        written = [each for each in before if isinstance(each, antiphon.ResponseTextDelta)]
        stem = f"marks/{case.name}"
        assert sum(len(each.pcm16) for each in heard) // 2 == recorded.rows[stem]["samples"] > 0
        text = spoken_text(recorded, stem, mimo_labs["marks"].ids)
        assert "".join(each.text for each in written) == text
        await call.add(case.text)
        await call.respond(options={"described": "yes"})
        done, _ = await until(call, antiphon.ResponseDone)
        assert done.response.error is not None
        assert done.response.error.field == "settings.options.described"


async def test_a_long_turn_is_answered(speakers: Speakers) -> None:
    """It is heard by the talker while it is spoken, from some seconds on."""
    voice = np.tile(clips()["voice"], 5)
    async with speakers["marks"].converse(sampling=SAMPLING) as call:
        for piece in np.array_split(voice, 8):
            await call.send_audio(spoken_pcm16(piece), RATE_HZ)
        await call.commit_audio()
        await call.respond()
        done, _ = await until(call, antiphon.ResponseDone)
    assert done.response.status in ANSWERED, done.response.error
