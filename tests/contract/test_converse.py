"""`Converse` through the SDK: turns, interruption, failures."""

from __future__ import annotations

import asyncio
import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import antiphon
from antiphon.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Unavailable,
)
from antiphon.values.conversation import from_tensors
from tests.contract.converse_client import asked, begin, said, until, until_begun, until_failed
from tests.contract.fake_stages import (
    CODE2WAV,
    FRAMES,
    ROLES,
    TALKER,
    TEXTS,
    THINKER,
    USUAL,
    Session,
    stall,
    twice,
)
from tests.contract.served_gateway import ServedGateway
from tests.contract.spoken_audio import RATE_HZ, sentence, spoken

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAID = "".join(TEXTS)
SECOND = np.zeros(24_000, "<i2").tobytes()
SPOKEN_TURN = [
    antiphon.ResponseStarted,
    antiphon.ResponseItemStarted,
    antiphon.ResponseAudioDelta,
    antiphon.ResponseTextDelta,
    antiphon.ResponseItemDone,
    antiphon.ResponseDone,
]


async def test_conversation_tells_a_spoken_turn_in_order(
    served: ServedGateway, client: antiphon.AsyncClient
) -> None:
    async with client.converse(voice="ETHAN") as call:
        assert call.opened.settings == antiphon.HeldSettings("", True, "ethan", {}, None)
        assert (call.opened.model, call.sample_rate_hz) == ("fake-omni", 24_000)
        item_id = await said(call, "Hi")
        await call.respond(metadata={"turn": "1"})
        call.finish()
        events = [event async for event in call]
    kinds = dict.fromkeys(type(event) for event in events)
    deltas = {antiphon.ResponseAudioDelta, antiphon.ResponseTextDelta}
    assert [kind for kind in kinds if kind not in deltas] == [*SPOKEN_TURN[:2], *SPOKEN_TURN[4:]]
    assert set(list(kinds)[2:4]) == deltas
    done = events[-1]
    assert isinstance(done, antiphon.ResponseDone)
    assert (done.response.status, done.response.text) == ("completed", SAID)
    assert (done.response.metadata, done.response.error) == ({"turn": "1"}, None)
    assert done.response.usage is not None
    assert done.response.usage.completion_audio_frames == sum(FRAMES)
    pcm16 = b"".join(e.pcm16 for e in events if isinstance(e, antiphon.ResponseAudioDelta))
    assert len(pcm16) // 2 == sum(FRAMES) * 1920 - 555
    (item,) = done.response.items
    assert item.parts == (antiphon.SpokenPart(SAID, len(pcm16) / 48_000),)
    begun = next(e for e in events if isinstance(e, antiphon.ResponseItemStarted))
    assert (begun.item_id, begun.previous_item_id) == (item.id, item_id)


async def test_conversation_carries_two_turns_on_one_session(
    served: ServedGateway, client: antiphon.AsyncClient
) -> None:
    for role in ROLES:
        served.fakes[role].script = twice(USUAL[role])
    settings = {"": antiphon.SamplingRequest(max_tokens=9, seed=4)}
    async with client.converse() as call:
        await call.update(instructions="Be kind", sampling=settings)
        held = (await until(call, antiphon.SettingsUpdated)).settings
        assert (held.instructions, held.sampling) == ("Be kind", settings)
        for text in ("One", "Two"):
            await said(call, text)
            await call.respond()
            await until(call, antiphon.ResponseDone)
        assert asked(served) == [
            ("system", ["Be kind"]),
            ("user", ["One"]),
            ("assistant", [SAID]),
            ("user", ["Two"]),
        ]
    for role in ROLES:
        (one,) = served.fakes[role].sessions
        await one.ended.wait()
    sampling = served.fakes[THINKER].sessions[0].segment.sampling[THINKER]
    assert (sampling.max_tokens, sampling.seed) == (9, 4)


async def test_conversation_hears_audio_in_pieces(
    served: ServedGateway, client: antiphon.AsyncClient
) -> None:
    wish = antiphon.TranscriptOptions("en", "A greeting.")
    async with client.converse(spoken=False, transcripts=wish) as call:
        assert call.opened.settings.transcripts == wish
        await call.send_audio(SECOND)
        await call.clear_audio()
        await until(call, antiphon.AudioDropped)
        for _ in range(2):
            await call.send_audio(SECOND[:8_000], 16_000)
        await call.commit_audio()
        committed = await until(call, antiphon.AudioAccepted)
        created = await until(call, antiphon.ItemCreated)
        assert created.item == antiphon.Item(
            "user", (antiphon.RecordedPart(b"", 16_000, 0.5),), committed.item_id
        )
        told = await until(call, antiphon.TranscriptDone)
        assert (told.item_id, told.text) == (committed.item_id, SAID)
        await call.update(transcripts=None)
        assert (await until(call, antiphon.SettingsUpdated)).settings.transcripts is None
        await call.respond()
        assert (await until(call, antiphon.ResponseDone)).response.text == SAID
        chunk = served.fakes[THINKER].sessions[-1].input
        assert chunk is not None
        (heard,) = from_tensors(chunk.tensors).recordings
        assert len(heard) == 8_000
        await call.fetch(committed.item_id)
        (part,) = (await until(call, antiphon.ItemFetched)).item.parts
        assert isinstance(part, antiphon.RecordedPart)
        assert (part.pcm16, part.transcript) == (SECOND[:16_000], SAID)
        await call.delete(committed.item_id)
        assert (await until(call, antiphon.ItemRemoved)).item_id == committed.item_id


async def test_interrupted_answer_is_cut_to_what_was_heard(
    served: ServedGateway, client: antiphon.AsyncClient
) -> None:
    for role in ROLES:
        served.fakes[role].script = begin
    async with client.converse() as call:
        await said(call, "Tell me a story")
        await call.respond()
        delta = await until_begun(call)
        # The audio lasts 0.777 s; half of it is "Once" and a piece of a word.
        await call.interrupt(0.4)
        after: list[Any] = []
        async for event in call:
            after.append(event)
            if isinstance(event, antiphon.ResponseDone):
                break
        cuts = [event for event in after if isinstance(event, antiphon.ItemCut)]
        assert cuts == [antiphon.ItemCut(delta.item_id, 0.4)]
        done = after[-1].response
        assert (done.status, done.items[0].complete) == ("cancelled", False)
        assert not any(isinstance(event, antiphon.ResponseAudioDelta) for event in after)
        await call.cancel(reference="mine")
        failed = await until_failed(call)
        assert (type(failed.error), failed.reference) == (FailedPrecondition, "mine")
        await said(call, "Stop")
        await call.respond()
        assert (await until(call, antiphon.ResponseDone)).response.status == "completed"
        assert asked(served)[1:] == [("assistant", ["Once"]), ("user", ["Stop"])]
    assert len(served.fakes[TALKER].sessions) == 1


async def test_failed_response_leaves_the_conversation(
    served: ServedGateway, client: antiphon.AsyncClient
) -> None:
    async def give_up(session: Session) -> None:
        await session.opened()
        await session.audio(1, 0)
        await session.error(Unavailable("the device is gone"))

    served.fakes[CODE2WAV].script = give_up
    async with client.converse() as call:
        await said(call, "Hi")
        await call.respond()
        failed = (await until(call, antiphon.ResponseDone)).response
        assert failed.status == "failed"
        assert isinstance(failed.error, Unavailable)
        assert (failed.error.stage, failed.error.retryable) == (CODE2WAV, True)
        served.fakes[CODE2WAV].script = USUAL[CODE2WAV]
        await call.respond()
        assert (await until(call, antiphon.ResponseDone)).response.status == "completed"


async def test_response_out_of_band_answers_what_is_given(
    served: ServedGateway, client: antiphon.AsyncClient
) -> None:
    async with client.converse(spoken=False) as call:
        first = await said(call, "One")
        await call.add(antiphon.Item("system", ("Count.",), id="mine"), after="root")
        assert (await until(call, antiphon.ItemCreated)).item.id == "mine"
        await call.respond(
            [first, antiphon.Item("user", ("Two",))], out_of_band=True, instructions="Be quick"
        )
        done = (await until(call, antiphon.ResponseDone)).response
        assert done.out_of_band
        assert asked(served) == [("system", ["Be quick"]), ("user", ["One"]), ("user", ["Two"])]
        await call.respond()
        await until(call, antiphon.ResponseDone)
        assert asked(served) == [("system", ["Count."]), ("user", ["One"])]


async def test_blocking_conversation_is_the_same(served: ServedGateway) -> None:
    for role in ROLES:
        served.fakes[role].script = twice(USUAL[role])

    def talk() -> list[antiphon.TalkEvent]:
        with antiphon.Client(served.gateway.grpc_address) as client, client.converse() as call:
            call.update(instructions="Be kind")
            call.send_audio(SECOND)
            call.commit_audio()
            call.respond()
            events: list[antiphon.TalkEvent] = []
            for event in call:
                events.append(event)
                if isinstance(event, antiphon.ResponseDone):
                    break
            call.add("And?")
            call.respond()
            call.finish()
            return [*events, *call]

    events = await asyncio.to_thread(talk)
    done = [e.response for e in events if isinstance(e, antiphon.ResponseDone)]
    assert [(each.status, each.text) for each in done] == [("completed", SAID)] * 2
    assert asked(served)[1:] == [("user", ["audio"]), ("assistant", [SAID]), ("user", ["And?"])]


async def test_blocking_conversation_is_interrupted_from_another_thread(
    served: ServedGateway,
) -> None:
    for role in ROLES:
        served.fakes[role].script = begin

    def talk() -> antiphon.ConversationReply:
        with antiphon.Client(served.gateway.grpc_address) as client, client.converse() as call:
            call.add("Tell me a story")
            call.respond()
            for event in call:
                match event:
                    case antiphon.ResponseAudioDelta():
                        asyncio.run_coroutine_threadsafe(
                            asyncio.to_thread(call.interrupt, 0.4), loop
                        )
                    case antiphon.ResponseDone(response):
                        return response
        raise AssertionError("no response has ended")

    loop = asyncio.get_running_loop()
    assert (await asyncio.to_thread(talk)).status == "cancelled"


async def test_conversation_that_is_left_frees_the_stages(
    served: ServedGateway, client: antiphon.AsyncClient
) -> None:
    for role in ROLES:
        served.fakes[role].script = begin
    async with client.converse() as call:
        await said(call, "Hi")
        await call.respond()
        await until(call, antiphon.ResponseAudioDelta)
    for role in ROLES:
        await served.fakes[role].sessions[-1].ended.wait()


async def test_speech_is_a_turn_that_stops_the_answer_and_is_answered(
    served: ServedGateway, client: antiphon.AsyncClient
) -> None:
    for role in ROLES:
        served.fakes[role].script = begin
    word = spoken([sentence("slow", 0.8)], before_s=0.5, after_s=0.8, snr_db=30)
    turns = antiphon.VoiceTurns(silence_s=0.4)
    async with client.converse(turns=turns) as call:
        assert call.opened.settings.turns == turns
        await said(call, "Tell me a story")
        await call.respond()
        await until(call, antiphon.ResponseAudioDelta)
        for piece in word.pieces(0.1):
            await call.send_audio(base64.b64decode(piece), RATE_HZ)
        begun = await until(call, antiphon.SpeechBegan)
        after: list[Any] = []
        async for event in call:
            after.append(event)
            if isinstance(event, antiphon.ResponseDone) and event.response.status == "completed":
                break
        kinds = [type(event) for event in after]
        first = next(event for event in after if isinstance(event, antiphon.ResponseDone))
        assert (first.response.status, first.response.reason) == ("cancelled", "turn_detected")
        assert antiphon.ResponseAudioDelta not in kinds[: after.index(first)]
        ended = next(event for event in after if isinstance(event, antiphon.SpeechEnded))
        accepted = next(event for event in after if isinstance(event, antiphon.AudioAccepted))
        assert begun.item_id == ended.item_id == accepted.item_id
        assert begun.start_s < ended.end_s
        assert asked(served)[-1] == ("user", ["audio"])
        await call.update(turns=None)
        assert (await until(call, antiphon.SettingsUpdated)).settings.turns is None


async def test_client_that_has_finished_is_told_all_that_it_asked_for(
    served: ServedGateway, client: antiphon.AsyncClient
) -> None:
    """An answer that waits for a cancelled one, and what was said."""
    for role in ROLES:
        served.fakes[role].script = begin
    async with client.converse() as call:
        await said(call, "Tell me a story")
        await call.respond()
        await until(call, antiphon.ResponseAudioDelta)
        await call.cancel()
        await call.respond()
        call.finish()
        done = [e.response.status async for e in call if isinstance(e, antiphon.ResponseDone)]
    assert done == ["cancelled", "completed"]
    served.fakes.reset()
    async with client.converse(transcripts=antiphon.TranscriptOptions()) as call:
        await call.send_audio(SECOND)
        await call.commit_audio()
        call.finish()
        told = [event async for event in call if isinstance(event, antiphon.TranscriptDone)]
    assert [each.text for each in told] == [SAID]


async def test_blocking_conversation_ends_a_wait_that_is_longer_than_its_reader_has_patience(
    served: ServedGateway,
) -> None:
    """However long its opening might have taken: a longer wait that began before is not over."""
    served.fakes[THINKER].script = stall

    def talk() -> None:
        with antiphon.Client(served.gateway.grpc_address) as client:
            longer = client.generate("Hi", idle_timeout_s=600.0)
            with ThreadPoolExecutor(1) as others:
                other = others.submit(list, longer)
                with client.converse(idle_timeout_s=0.2) as call:
                    with pytest.raises(DeadlineExceeded, match=r"0\.2 s"):
                        next(call)
                    assert not other.done()
                longer.cancel()
                assert isinstance(other.exception(), Cancelled)

    await asyncio.to_thread(talk)
