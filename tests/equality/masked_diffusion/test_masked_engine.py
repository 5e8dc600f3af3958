"""The engine serves many answers: recorded ids, steps, blocks, faults and bounds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from antiphon.errors import InvalidArgument, ResourceExhausted
from antiphon.runtime.engine import (
    Advanced,
    Completed,
    Emitted,
    EngineEvent,
    Failed,
    InputChunk,
    SegmentSettings,
)
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.diffusion.masked_answer import DrawnIds, MaskedAnswer
from antiphon_services.diffusion.masked_engine import MaskedEngine
from antiphon_services.diffusion.unmasking_plan import block_steps
from antiphon_services.stage.preparation import Preparations
from antiphon_testkit import tiny_llada as tiny
from tests.equality.masked_diffusion.diffusion_cases import CASES
from tests.equality.masked_diffusion.diffusion_lab import Lab, delivered, sampled

pytestmark = pytest.mark.equality

BY_NAME = {case.name: case for case in CASES}
INPUT, IDS = "input", "ids"
PLENTY = 1 << 20
BAD_PROMPT = -2


class CaseSegment:
    """Answers the case whose number is its input, as ids on one edge."""

    def __init__(self, lab: Lab, key: SegmentKey, settings: SegmentSettings) -> None:
        self.lab, self.key, self.position = lab, key, 0
        self.answer: MaskedAnswer | None = None

    def accept(self, chunk: InputChunk) -> None:
        """The number of a case, -1 for one whose logits are not finite, or -2 for a bad prompt."""
        self.number = int(chunk.tensors["case"][0])

    def prepare(self, preparations: Preparations[int]) -> Future[int]:
        """See `MaskedSegment`."""
        return preparations.begin(self.key, self.prompt, text_bytes=1, media_bytes=0)

    def prompt(self) -> int:
        """The number. Raises for a bad prompt."""
        if self.number == BAD_PROMPT:
            raise InvalidArgument("messages: bad", field="messages")
        return self.number

    def begin(self, prompt: int) -> None:
        """See `MaskedSegment`."""
        self.answer = broken(self.lab) if prompt < 0 else self.lab.answer(CASES[prompt])

    def so_far(self) -> Completed:
        """See `MaskedSegment`."""
        return Completed(self.key, FinishReason.CANCELLED, 0, self.position)

    def settled(self, ids: Sequence[int], *, done: bool) -> Sequence[EngineEvent]:
        """See `MaskedSegment`."""
        position, self.position = self.position, self.position + len(ids)
        reason = FinishReason.STOP if done else None
        tensors = {"ids": np.array(ids, np.int32)}
        events: list[EngineEvent] = [Emitted(self.key, IDS, position, tensors, reason)]
        return [*events, Completed(self.key, FinishReason.STOP, 0, self.position)][: 1 + done]


class Served:
    """An engine, and what its segments have returned."""

    def __init__(
        self,
        lab: Lab,
        *,
        slots: int = 32,
        most_positions: int = PLENTY,
        preparations: Preparations[int] | None = None,
    ) -> None:
        self.engine = MaskedEngine(
            lab.model,
            partial(CaseSegment, lab),
            role="thinker",
            edge=INPUT,
            slots=slots,
            most_positions=most_positions,
            preparations=preparations or Preparations(at_once_bytes=1),
        )
        self.events: dict[SegmentKey, list[EngineEvent]] = {}

    def start(self, number: int) -> SegmentKey:
        """Admit a segment and give it its input."""
        key = SegmentKey(f"session-{len(self.events)}", 0)
        settings = SegmentSettings("", sampled(0.0, 0), frozenset({IDS}))
        self.engine.admit(key, settings)
        assert self.engine.awaited_edge(key) == INPUT
        tensors = {"case": np.array([number], np.int32)}
        self.engine.accept(key, InputChunk(INPUT, 0, tensors, segment_finished=True))
        assert self.engine.awaited_edge(key) is None
        self.events[key] = []
        return key

    def step(self, *held: SegmentKey) -> Sequence[EngineEvent]:
        """Step, and release the segments that have ended."""
        events = self.engine.step(held)
        for event in events:
            self.events[event.key].append(event)
            if isinstance(event, Completed | Failed):
                self.engine.release(event.key)
        return events

    def ids(self, key: SegmentKey) -> torch.Tensor:
        """All that were emitted, in order."""
        emitted = [each for each in self.events[key] if isinstance(each, Emitted)]
        ids = [each.tensors["ids"] for each in emitted]
        assert [each.position for each in emitted] == [
            sum(map(len, ids[:at])) for at in range(len(ids))
        ]
        return torch.tensor(np.concatenate(ids))


def broken(lab: Lab) -> MaskedAnswer:
    """An answer whose logits are not finite."""
    drawn = DrawnIds(torch.full_like(lab.model.ff_out.weight, float("nan")))
    return MaskedAnswer([1], block_steps(2, 2, 2), drawn, sampled(0.0, 0), mask_id=tiny.MASK)


@pytest.mark.parametrize("most_positions", [PLENTY, 400, 1])
def test_answers_are_recorded_ones_when_served_together(
    most_positions: int,
    preset: str,
    lab: Lab,
    recorded: dict[str, npt.NDArray[np.generic]],
) -> None:
    served = Served(lab, most_positions=most_positions)
    keys = {served.start(number): case for number, case in enumerate(CASES)}
    while sum(isinstance(each, Completed) for of in served.events.values() for each in of) < len(
        keys
    ):
        assert served.step()
    for key, case in keys.items():
        made = delivered(case, served.ids(key))
        assert made == recorded[f"{preset}/{case.name}"].tolist(), case.name


def test_each_step_is_reported_and_blocks_are_emitted_when_they_are_finished(lab: Lab) -> None:
    served = Served(lab)
    key = served.start(CASES.index(BY_NAME["greedy"]))
    while not isinstance(served.events[key][-1:][0] if served.events[key] else None, Completed):
        served.step()
    steps = [each for each in served.events[key] if isinstance(each, Advanced)]
    assert [each.done for each in steps] == list(range(1, 49))
    assert {each.due for each in steps} == {48}
    kinds = [type(each) for each in served.events[key]]
    after = [at for at, kind in enumerate(kinds) if kind is Emitted]
    assert [kinds[:at].count(Advanced) for at in after] == [16, 32, 48]


def test_others_go_on_when_a_segment_is_released_between_steps(
    preset: str, lab: Lab, recorded: dict[str, npt.NDArray[np.generic]]
) -> None:
    served = Served(lab)
    first, second = (served.start(CASES.index(BY_NAME[name])) for name in ("greedy", "units"))
    for _ in range(7):
        served.step()
    served.engine.release(first)
    while not isinstance(served.events[second][-1], Completed):
        assert {each.key for each in served.step()} == {second}
    made = delivered(BY_NAME["units"], served.ids(second))
    assert made == recorded[f"{preset}/units"].tolist()


def test_fault_of_one_answer_fails_it_alone(lab: Lab) -> None:
    served = Served(lab)
    bad, good = served.start(-1), served.start(CASES.index(BY_NAME["one-id"]))
    served.step()
    (failed,) = served.events[bad]
    assert isinstance(failed, Failed)
    assert "not finite" in str(failed.error)
    assert isinstance(served.events[good][-1], Completed)


def test_step_does_nothing_when_all_segments_have_ended(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(lab)
    for number in (-1, CASES.index(BY_NAME["one-id"])):
        served.start(number)
    assert {type(each) for each in served.engine.step()} == {Failed, Advanced, Emitted, Completed}
    assert list(served.engine.step()) == []
    assert not caplog.records


def test_segment_costs_nothing_while_it_is_held(lab: Lab) -> None:
    served = Served(lab)
    held, other = (served.start(CASES.index(BY_NAME["greedy"])) for _ in range(2))
    for _ in range(3):
        assert {each.key for each in served.step(held)} == {other}
    assert {each.key for each in served.step()} == {held, other}


def test_segments_take_turns_when_a_call_has_room_for_few(lab: Lab) -> None:
    case = BY_NAME["greedy"]
    served = Served(lab, most_positions=2 * (case.prompt + case.count))
    keys = [served.start(CASES.index(case)) for _ in range(3)]
    for _ in range(6):
        assert len({each.key for each in served.step()}) == 2
    counts = [sum(isinstance(each, Advanced) for each in served.events[key]) for key in keys]
    assert counts == [4, 4, 4]


def test_guided_answer_counts_twice_and_padding_counts(lab: Lab) -> None:
    guided, plain = BY_NAME["greedy-guided"], BY_NAME["greedy"]
    numbers = [CASES.index(case) for case in (guided, plain)]
    longest = plain.prompt + plain.count
    for most, together in ((3 * longest, 2), (3 * longest - 1, 1)):
        served = Served(lab, most_positions=most)
        for number in numbers:
            served.start(number)
        assert len({each.key for each in served.step()}) == together


def test_segment_is_refused_when_all_slots_are_taken(lab: Lab) -> None:
    served = Served(lab, slots=1)
    key = served.start(0)
    with pytest.raises(ResourceExhausted, match="thinker: all 1 slots are in use"):
        served.start(0)
    served.engine.release(key)
    served.start(0)


def test_bad_prompt_fails_its_segment_alone(lab: Lab) -> None:
    served = Served(lab)
    bad, good = served.start(BAD_PROMPT), served.start(CASES.index(BY_NAME["one-id"]))
    served.step()
    (failed,) = served.events[bad]
    assert isinstance(failed, Failed)
    assert "messages: bad" in str(failed.error)
    assert isinstance(served.events[good][-1], Completed)


def test_others_step_while_a_prompt_is_prepared_on_a_thread(lab: Lab) -> None:
    """A step with nothing else to do waits for the prompt."""
    gate, woken = threading.Event(), threading.Event()

    class Slow(Preparations[int]):
        def begin(self, key: SegmentKey, make: Any, **given: int) -> Future[int]:
            def waiting() -> int:
                assert gate.wait(120)
                return int(make())

            slow = len(served.events) == 1
            return super().begin(key, waiting if slow else make, **given)

    served = Served(lab, preparations=Slow())
    served.engine.wake_with(woken.set)
    case = CASES.index(BY_NAME["one-id"])
    first = served.start(CASES.index(BY_NAME["greedy"]))
    while not any(isinstance(each, Advanced) for each in served.events[first]):
        served.step()
    second = served.start(case)
    assert served.engine.prepares(second)
    assert {each.key for each in served.step()} == {first}
    woken.clear()
    gate.set()
    assert woken.wait(120)
    assert not served.engine.prepares(second)
    assert {each.key for each in served.step()} == {first, second}
    third = served.start(case)
    served.engine.release(first)
    assert {each.key for each in served.step()} == {third}
    served.engine.close()
