"""Turns of a conversation: what earlier ones computed is not computed again, nor anything else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from antiphon.errors import ResourceExhausted
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.frames import LEAST_PART_ROWS, FrameDraw, PromptPart
from antiphon_services.lm.known_frames import KnownPart
from antiphon_services.lm.readback import PendingDraw
from antiphon_services.qwen3_omni.talker.engine import TalkerEngine
from antiphon_services.qwen3_omni.talker.prompt import TalkerPrompt
from antiphon_testkit.drive_engine import SegmentOutput, advance, run_segment, run_segments
from tests.unit.services.qwen3_omni.talker.talker_lab import (
    GREEDY,
    LEAST_MARGIN,
    NEWLINE,
    Lab,
    Turn,
    codes_of,
    make_late_engine,
)

TURNS = 20
ANSWER_ROWS = 9
BRIEF = replace(GREEDY, max_tokens=6)
SLOTS = 3


@dataclass(frozen=True)
class Said:
    """A message of the user's, with a recording, and what is answered to it."""

    ids: tuple[int, ...]
    rows: np.ndarray[tuple[int, int], np.dtype[np.float32]]
    answer: tuple[int, ...]


def said(lab: Lab, seed: int, audio: int) -> Said:
    """What a user says, ending in words."""
    content = lab.text(seed, 2) + [lab.special.audio] * audio + lab.text(seed + 1, 3)
    noise = np.random.default_rng(seed).standard_normal((audio, lab.shape.hidden))
    ids = lab.segment(lab.special.user, content)
    return Said(tuple(ids), noise.astype(np.float32), tuple(lab.text(seed + 2, 4)))


def asked(lab: Lab, messages: Sequence[Said]) -> Turn:
    """The turn that answers the last of these messages."""
    special = lab.special
    prompt = lab.segment(8, lab.text(7, 5))
    for each in messages:
        prompt += each.ids
        if each is not messages[-1]:
            prompt += lab.segment(special.assistant, each.answer)
    prompt += [special.im_start, special.assistant, NEWLINE]
    turn = lab.make_turn(prompt, messages[-1].answer, sampling=BRIEF)
    return replace(turn, rows=np.concatenate([each.rows for each in messages]))


def decided(lab: Lab, before: Sequence[Said], seed: int, audio: int) -> Said:
    """A message to which, behind those before, the answer's choices are not close."""
    made = (said(lab, at, audio) for at in itertools.count(seed, 1000))
    return next(
        each
        for each in itertools.islice(made, 20)
        if lab.reference(asked(lab, [*before, each])).margin >= LEAST_MARGIN
    )


@pytest.fixture(scope="module")
def talk(small_lab: Lab) -> list[Said]:
    """The user's messages of a conversation: short ones, and a few that are longer than a part."""
    messages: list[Said] = []
    for turn in range(TURNS):
        audio = 150 if turn in (3, 11) else 5 + 9 * (turn % 4)
        messages.append(decided(small_lab, messages, turn, audio))
    return messages


class Speaker:
    """An engine, and how many rows of prompts it computes."""

    def __init__(self, engine: TalkerEngine, lab: Lab, patch: pytest.MonkeyPatch) -> None:
        self.engine, self._lab = engine, lab
        self.rows = 0
        model, step = engine.model, engine.model.step

        def counted(
            parts: Sequence[PromptPart[TalkerPrompt]],
            draws: Sequence[FrameDraw[int]],
            known: Sequence[KnownPart[TalkerPrompt]],
        ) -> list[PendingDraw]:
            self.rows += sum(part.stop - part.start for part in parts)
            return step(parts, draws, known)

        patch.setattr(model, "step", counted)

    def speak(self, turn: Turn, number: int, session: str = "talk") -> int:
        """How many prompt rows the turn took, whose codes are the reference's."""
        before = self.rows
        output = run_segment(self.engine, turn.settings, turn.chunks(), SegmentKey(session, number))
        return self.check(turn, output, self.rows - before)

    def check(self, turn: Turn, output: SegmentOutput, rows: int) -> int:
        assert codes_of(self._lab, output).tolist() == self._lab.reference(turn).codes.tolist()
        assert output.completed is not None
        told = output.completed.input_positions - output.completed.input_cached_positions
        # The last row of a prompt goes with the first draw.
        assert told == rows + 1
        return told

    def check_all_slots_free(self, turn: Turn) -> None:
        """As many others as there are slots can begin this turn."""
        keys = [SegmentKey(f"another {at}", 0) for at in range(SLOTS)]
        for key in keys:
            self.engine.admit(key, turn.settings)
            self.engine.accept(key, turn.chunks()[0])
        for key in keys:
            self.engine.release(key)


@pytest.fixture(params=["in turn", "ahead"])
def speaker(
    request: pytest.FixtureRequest, small_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> Speaker:
    engine, _ = make_late_engine(small_lab, SLOTS, launch_ahead=request.param == "ahead")
    return Speaker(engine, small_lab, monkeypatch)


def most_rows(message: Said) -> int:
    """Of a turn that adds this: of what came before, a piece too short for a part goes with it."""
    return LEAST_PART_ROWS - 1 + len(message.ids) + ANSWER_ROWS


def test_each_turn_computes_what_is_new_and_equals_the_reference(
    speaker: Speaker, small_lab: Lab, talk: list[Said]
) -> None:
    for number, message in enumerate(talk):
        turn = asked(small_lab, talk[: number + 1])
        assert speaker.speak(turn, number) <= most_rows(message)
    speaker.check_all_slots_free(asked(small_lab, talk[:1]))
    # The prompt of the last is much longer than that.
    assert sum(len(each.ids) for each in talk) > 8 * most_rows(talk[-1])


Change = Callable[[Lab, list[Said]], list[Said]]


def deleted(_: Lab, messages: list[Said]) -> list[Said]:
    return [*messages[:2], *messages[3:]]


def heard_otherwise(_: Lab, messages: list[Said]) -> list[Said]:
    """By one number of one row."""
    rows = messages[2].rows.copy()
    rows[-1, -1] = np.nextafter(rows[-1, -1], 9)
    return [*messages[:2], replace(messages[2], rows=rows), *messages[3:]]


def reworded(lab: Lab, messages: list[Said]) -> list[Said]:
    """In the last word."""
    ids = messages[2].ids
    return [*messages[:2], replace(messages[2], ids=(*ids[:-3], 33, *ids[-2:])), *messages[3:]]


@pytest.mark.parametrize("change", [deleted, heard_otherwise, reworded])
def test_turn_that_changes_an_earlier_item_computes_from_there(
    speaker: Speaker, small_lab: Lab, talk: list[Said], change: Change
) -> None:
    begun = talk[:6]
    speaker.speak(asked(small_lab, begun), 1)
    changed = change(small_lab, begun)
    while small_lab.reference(asked(small_lab, changed)).margin < LEAST_MARGIN:
        changed = [*changed, decided(small_lab, changed, 77, 8)]
    kept = sum(len(each.ids) for each in begun[:2])
    total = sum(len(each.ids) for each in changed) + ANSWER_ROWS
    assert total - kept <= speaker.speak(asked(small_lab, changed), 2) <= total
    # What was changed is there now, and what was changed is not.
    assert speaker.speak(asked(small_lab, changed), 3) <= most_rows(changed[-1])
    total = sum(len(each.ids) for each in begun) + ANSWER_ROWS
    assert total - kept <= speaker.speak(asked(small_lab, begun), 4) <= total


def test_answers_themselves_change_nothing(
    speaker: Speaker, small_lab: Lab, talk: list[Said]
) -> None:
    """Cut to what was heard, say: the talker's prompt has none of them."""
    speaker.speak(asked(small_lab, talk[:5]), 1)
    cut = [*talk[:3], replace(talk[3], answer=talk[3].answer[:1]), *talk[4:6]]
    assert speaker.speak(asked(small_lab, cut), 2) <= most_rows(talk[5])


@pytest.mark.parametrize("frames", [0, 2])
@pytest.mark.parametrize("broken", [False, True], ids=["cancelled", "not finite"])
def test_turn_that_ends_early_leaves_what_was_there_before(
    speaker: Speaker, small_lab: Lab, talk: list[Said], frames: int, broken: bool
) -> None:
    speaker.speak(asked(small_lab, talk[:3]), 1)
    turn, engine, key = asked(small_lab, talk[:4]), speaker.engine, SegmentKey("talk", 2)
    if broken:
        rows = turn.rows.copy()
        rows[len(rows) - len(talk[3].rows) :] = np.nan
        output = run_segment(engine, turn.settings, replace(turn, rows=rows).chunks(), key)
        assert output.failed is not None
    else:
        output = SegmentOutput()
        engine.admit(key, turn.settings)
        for chunk in turn.chunks() if frames else turn.prompt_chunks():
            engine.accept(key, chunk)
        while len(output.emitted) < frames:
            advance(engine, {key: output}, steps=1)
        if not frames:
            advance(engine, {key: output}, steps=2)
        engine.release(key)
    new = most_rows(talk[3]) + len(talk[4].ids)
    assert speaker.speak(asked(small_lab, talk[:5]), 3) <= new
    speaker.check_all_slots_free(asked(small_lab, talk[:1]))


def test_sessions_that_are_away_make_room_and_stay_right(
    speaker: Speaker, small_lab: Lab, talk: list[Said]
) -> None:
    """More conversations than slots, in company and by turns."""
    sessions = [f"talk {number}" for number in range(SLOTS + 1)]
    for number in range(1, 4):
        turn = asked(small_lab, talk[: number + 3])
        for pair in (sessions[:2], sessions[2:]):
            keys = [SegmentKey(session, number) for session in pair]
            segments = {key: (turn.settings, turn.chunks()) for key in keys}
            for output in run_segments(speaker.engine, segments).values():
                codes = codes_of(small_lab, output).tolist()
                assert codes == small_lab.reference(turn).codes.tolist()
    # All slots hold what somebody may come back for, and are to be had all the same.
    last, keys = asked(small_lab, talk[:1]), [SegmentKey(f"new {at}", 0) for at in range(SLOTS + 1)]
    for key in keys:
        speaker.engine.admit(key, last.settings)
    for key in keys[:-1]:
        speaker.engine.accept(key, last.chunks()[0])
    with pytest.raises(ResourceExhausted):
        speaker.engine.accept(keys[-1], last.chunks()[0])
    for key in keys:
        speaker.engine.release(key)
    speaker.check_all_slots_free(asked(small_lab, talk[:1]))


def test_requests_of_one_turn_do_not_take_the_slots_of_conversations(
    speaker: Speaker, small_lab: Lab, talk: list[Said]
) -> None:
    speaker.speak(asked(small_lab, talk[:4]), 1)
    for number in range(2 * SLOTS):
        speaker.speak(asked(small_lab, talk[:1]), 0, session=f"request {number}")
    assert speaker.speak(asked(small_lab, talk[:5]), 2) <= most_rows(talk[4])


def test_images_of_earlier_turns_are_not_computed_again(speaker: Speaker, small_lab: Lab) -> None:
    def seen(seed: int, turns: int, grid: tuple[int, int, int]) -> Turn:
        config, special = small_lab.model.config.thinker_config, small_lab.special
        count = int(np.prod(grid))
        prompt: list[int] = []
        for number in range(turns):
            image = [config.vision_start_token_id, *[special.image] * count]
            content = [*small_lab.text(number, 9), *image, config.vision_end_token_id]
            prompt += small_lab.segment(special.user, content)
            prompt += small_lab.segment(special.assistant, small_lab.text(number, 3))
        prompt += small_lab.segment(special.user, small_lab.text(seed, 7))
        prompt += [special.im_start, special.assistant, NEWLINE]
        grids, steps = (grid,) * turns, (1,) * turns
        turn = small_lab.make_turn(prompt, small_lab.text(seed, 5), grids=grids, steps=steps)
        # Each turn has the rows of those before it.
        return replace(turn, sampling=BRIEF)

    def turns(count: int, grid: tuple[int, int, int]) -> Iterator[Turn]:
        return (seen(seed, count, grid) for seed in itertools.count(5, 100))

    one, two = (small_lab.decided(turns(count, (1, 4, 6))) for count in (1, 2))
    other = small_lab.decided(turns(2, (1, 6, 4)))
    image = 9 + 24 + 2 + 5
    first = speaker.speak(one, 1)
    assert first > image
    assert speaker.speak(two, 2) <= first
    # As many rows, turned otherwise: nothing of it is there.
    assert speaker.speak(other, 3) == first + image
