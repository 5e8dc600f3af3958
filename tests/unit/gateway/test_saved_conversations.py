"""Conversations as bytes and back, and the seal over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.values.answer import FunctionCall
from antiphon.values.live_conversation import (
    AudioAccepted,
    CallResultPart,
    ConversationSaved,
    Item,
    SpokenPart,
    TimedTurns,
    TranscriptOptions,
    VoiceTurns,
)
from antiphon.values.sampling import SamplingRequest
from antiphon_gateway.conversations.events import ConversationEvent
from antiphon_gateway.conversations.items import HeardPart
from antiphon_gateway.conversations.saved import PendingResponse, restore, save, with_delivered
from antiphon_gateway.conversations.saving import Saving
from antiphon_gateway.conversations.seal import Seal
from antiphon_gateway.conversations.settings import ConversationSettings, Eagerness, SemanticTurns
from antiphon_gateway.media.live_audio import A_LAW, MU_LAW
from antiphon_gateway.media.pcm_recording import PcmRecording
from tests.open_files import no_more_files

FIRST = ConversationSettings(
    model="model", voices=("ethan", "chelsie"), output_rate_hz=24_000, voice="ethan"
)
HELD = ConversationSettings(
    model="model",
    voices=("ethan", "chelsie"),
    output_rate_hz=24_000,
    spoken=False,
    voice="chelsie",
    instructions="Be brief.",
    max_output_tokens=7,
    turns=VoiceTurns(threshold=0.4, idle_timeout_s=3.0),
    input_format=MU_LAW,
    output_format=A_LAW,
    transcripts=TranscriptOptions("en", "names"),
    timeline=True,
    stopping=True,
    sampling={"thinker": SamplingRequest(temperature=0.5, stop=("end",))},
    tools=("{}",),
    tool_choice="none",
    parallel_calls=False,
    options={"task": "speech", "pace": 1.5, "clip": b"RIFF"},
)
SERVED = {
    "model",
    "voices",
    "voice_aliases",
    "output_rate_hz",
    "hears",
    "takes_tools",
    "reads_aloud",
    "voice_instructions",
}
"""Settings that are the served model's, and not the client's."""
ROOM = 1 << 16


def said(number: int, samples: int, transcript: str | None = None) -> Item:
    audio = PcmRecording(bytes(2 * samples), 24_000)
    return Item("user", (HeardPart.of(audio, transcript),), f"said_{number}")


def test_all_settings_of_the_client_are_kept() -> None:
    for field in fields(ConversationSettings):
        if field.name not in SERVED:
            assert getattr(HELD, field.name) != getattr(FIRST, field.name), field.name
    for turns in (HELD.turns, TimedTurns(2.0), None, SemanticTurns(eagerness=Eagerness.LOW)):
        held = replace(HELD, turns=turns)
        data = save(held, (), (), ROOM)
        assert data is not None
        assert restore(data, FIRST).settings == held


def test_a_model_that_reads_aloud_restores_only_what_it_can_hold() -> None:
    """As another replica of the gateway does whose model is served with other stages by now."""
    data = save(HELD, (), (), ROOM)
    assert data is not None
    reads = replace(FIRST, hears=False, reads_aloud=True, voice_instructions=False, turns=None)
    restored = restore(data, reads).settings
    assert restored == replace(
        HELD,
        spoken=True,
        instructions="",
        turns=None,
        transcripts=None,
        hears=False,
        reads_aloud=True,
        voice_instructions=False,
    )
    described = replace(reads, voice_instructions=True)
    assert restore(data, described).settings.instructions == HELD.instructions


async def test_audio_that_was_committed_is_not_to_be_sent_again() -> None:
    told: list[ConversationEvent] = []

    async def send(events: Sequence[ConversationEvent]) -> None:
        told.extend(events)

    client: Any = SimpleNamespace(send=send)
    saving = Saving(client, lambda: (HELD, ()), bytes, ROOM)
    with saving.command(counted=True):
        pass
    with saving.command(counted=True):
        await saving.send([AudioAccepted("said")])
        # What comes of this command is not all there yet.
        assert len(told) == 1
    with saving.command(counted=True):
        pass
    await saving.send([])
    *_, saved = told
    assert isinstance(saved, ConversationSaved)
    assert (saved.commands, saved.audio_commands) == (3, 2)


def test_items_keep_ids_texts_and_whether_they_are_complete() -> None:
    items = (
        Item("system", ("x",), "a"),
        Item("assistant", (SpokenPart("y", 1.5),), "b", complete=False),
        Item("assistant", (FunctionCall("1", "f", "{}"),), "c"),
        Item("tool", (CallResultPart("1", "z"),), "d"),
    )
    data = save(HELD, items, (), ROOM)
    assert data is not None
    assert restore(data, FIRST).items == items


def test_the_latest_recordings_stay_as_far_as_they_fit() -> None:
    items = (said(0, 100), said(1, 100, "words"), said(2, 900), said(3, 100))
    data = save(FIRST, items, (), 2700)
    assert data is not None
    assert len(data) <= 2700
    kept = [each.parts[0] for each in restore(data, FIRST).items]
    assert kept[1] == "words"
    sizes = [len(e.recording.pcm16) for e in kept if isinstance(e, HeardPart)]
    assert sizes == [0, 1800, 200]
    assert save(FIRST, items, (), 200) is None


def test_a_conversation_whose_options_do_not_fit_cannot_be_saved() -> None:
    held = replace(FIRST, options={"clip": bytes(ROOM)})
    assert save(held, (), (), ROOM) is None
    assert save(held, (), (), 2 * ROOM) is not None


def test_text_that_is_no_unicode_cannot_be_saved() -> None:
    item = Item("user", ("\ud800",), "a")
    assert save(FIRST, (item,), (), ROOM) is None


def test_an_answer_that_was_being_made_is_as_long_as_the_client_has_it() -> None:
    call = FunctionCall("1", "f", "")
    items = (
        Item("assistant", (SpokenPart(""),), "a", complete=False),
        Item("assistant", (call,), "b", complete=False),
    )
    pending = PendingResponse("r", True, None, True, {"a": 0, "b": 1})
    data = save(FIRST, items, (pending,), ROOM)
    assert data is not None
    kept = with_delivered(restore(data, FIRST), {"a": ("Once", 0.5), "other": ("?", 1.0)})
    heard = (SpokenPart("Once", 0.5),)
    assert kept.items == (Item("assistant", heard, "a", complete=False),)


def test_another_model_and_other_bytes_are_refused() -> None:
    data = save(FIRST, (), (), ROOM)
    assert data is not None
    with pytest.raises(FailedPrecondition, match="'model'"):
        restore(data, ConversationSettings(model="other", voices=(), output_rate_hz=0))
    with pytest.raises(InvalidArgument, match="another version"):
        restore(b"\x91\x01", FIRST)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_seal_holds_for_its_owner_and_its_time() -> None:
    clock = Clock()
    seal = Seal("", holds_s=10, reload_s=1, now=clock)
    token = seal.close(b"content", "ann")
    assert seal.open(token, "ann", 7) == b"content"
    with pytest.raises(InvalidArgument, match="more than any token can have"):
        seal.open(token, "ann", 6)
    for other in (seal.close(b"content", "bob"), token[:-1], b"", token + b"x"):
        with pytest.raises(InvalidArgument, match="not issued to this client"):
            seal.open(other, "ann", ROOM)
    with pytest.raises(InvalidArgument, match="not issued to this client"):
        Seal("", holds_s=10, reload_s=1, now=clock).open(token, "ann", ROOM)
    clock.now = 11.0
    with pytest.raises(FailedPrecondition, match="older"):
        seal.open(token, "ann", ROOM)


def test_keys_change_with_their_file(tmp_path: Path) -> None:
    old, new = "o" * 32, "n" * 32
    file, clock = tmp_path / "keys", Clock()
    file.write_text(old)
    seal = Seal(str(file), holds_s=10, reload_s=1, clock=clock)
    token = seal.close(b"content", "")
    file.write_text(f"{new}\n{old}\n")
    clock.now = 1.0
    assert seal.open(token, "", ROOM) == b"content"
    later = seal.close(b"content", "")
    file.write_text("short")
    clock.now = 2.0
    assert seal.open(later, "", ROOM) == b"content"
    file.write_text(f"{new}\n")
    clock.now = 3.0
    assert seal.open(later, "", ROOM) == b"content"
    with pytest.raises(InvalidArgument, match="not issued to this client"):
        seal.open(token, "", ROOM)
    file.write_text(f"{old}\n")
    clock.now = 4.0
    with no_more_files():
        assert seal.open(later, "", ROOM) == b"content"
    clock.now = 5.0
    assert seal.open(token, "", ROOM) == b"content"
    with pytest.raises(InvalidArgument, match="at least 32"):
        Seal(_short(tmp_path), holds_s=10, reload_s=1)
    with pytest.raises(InvalidArgument, match="No such file"):
        Seal(str(tmp_path / "none"), holds_s=10, reload_s=1)


def _short(folder: Path) -> str:
    file = folder / "short"
    file.write_text("short")
    return str(file)
