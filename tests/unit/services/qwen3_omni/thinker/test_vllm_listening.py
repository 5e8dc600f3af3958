"""A recording that is made meanwhile: what the vLLM engine orders, and in which order."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, InputChunk, SegmentSettings
from antiphon.values.conversation import AudioPart, Conversation, ConversationMessage
from antiphon_services.qwen3_omni.thinker.load import load_intake
from antiphon_services.vllm.mailbox import Rows, Tokens
from antiphon_services.vllm.order import VllmOrder
from antiphon_testkit.conversations import live_chunks
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import segment
from tests.unit.services.qwen3_omni.thinker.vllm_bench import KEY, Bench, ids_of

SAID = [5, 6, 7]


@pytest.fixture
def bench(small_dir: Path) -> Bench:
    return Bench(small_dir, load_intake(small_dir, StageConfig()))


def live(
    said: npt.NDArray[np.float32], size: int, limit: int = 48
) -> tuple[SegmentSettings, list[InputChunk]]:
    """A user's recording that comes in pieces."""
    asked = Conversation((ConversationMessage("user", (AudioPart(0, alone=True),)),), (said,))
    settings, _ = segment(asked, max_tokens=limit)
    return dataclasses.replace(settings, live=True), live_chunks(asked, [size])


def noise(seconds: float, loud: float) -> npt.NDArray[np.float32]:
    made = np.random.default_rng(5).standard_normal(round(seconds * 16000)) * loud
    return made.astype(np.float32)


def rows_of(order: VllmOrder) -> Rows:
    """All rows that an order asks for."""
    rows = np.zeros((len(order.row_positions), 3), np.float32)
    return Rows(order.number, int(order.row_positions[0]), rows)


def positions_of(events: list[EngineEvent]) -> list[int]:
    """Of all rows that left."""
    told = [each.tensors for each in events if isinstance(each, Emitted) and each.edge == "prompt"]
    return [at for each in told if "rows" in each for at in each["row_positions"].tolist()]


def test_recording_is_prefilled_window_by_window_while_it_is_made(
    bench: Bench,
) -> None:
    settings, (head, first, second, end) = live(noise(17.0, 0.1), 9 * 16000, limit=3)
    bench.engine.admit(KEY, settings)
    told: list[EngineEvent] = []

    def hear(chunk: InputChunk) -> None:
        bench.engine.accept(KEY, chunk)
        told.extend(bench.engine.step())

    def finish(order: VllmOrder, cached: int) -> None:
        before = order.ids.tolist().count(audio)
        ids = ids_of(told, "prompt")[: len(order.ids) - before + 104 * before]
        told.extend(bench.bring(Tokens(order.number, SAID[:1], ids, cached, True)))

    audio = bench.intake.prompts.special.audio
    hear(head)
    (opening,) = bench.host.orders
    assert (opening.limit, len(opening.row_positions)) == (1, 0)
    # The first window waits until what is before it is prefilled.
    hear(first)
    assert len(bench.host.orders) == 1
    assert bench.engine.awaited_edge(KEY) is None
    finish(opening, 2)
    window = bench.host.orders[1]
    assert window.ids.tolist() == [*opening.ids.tolist(), audio]
    assert (window.limit, len(window.row_positions)) == (1, 104)
    told += bench.bring(rows_of(window))
    finish(window, 2)
    assert bench.engine.awaited_edge(KEY) == "input"
    hear(second)
    finish(bench.host.orders[2], 100)
    assert bench.engine.awaited_edge(KEY) is None
    told += bench.bring(rows_of(bench.host.orders[2]))
    hear(end)
    reply = bench.host.orders[3]
    assert reply.limit == 3
    assert reply.row_positions[0] == bench.host.orders[2].row_positions[-1] + 1
    told += bench.bring(rows_of(reply))
    told += bench.bring(Tokens(reply.number, SAID, ids_of(told, "prompt"), 200, True))
    completed = told[-1]
    assert isinstance(completed, Completed)
    assert completed.input_cached_positions == 2
    assert ids_of(told, "text") == SAID
    expected = [at for order in bench.host.orders for at in order.row_positions.tolist()]
    assert positions_of(told) == expected
    assert expected == list(range(expected[0], expected[0] + 221))


def test_windows_that_something_louder_changes_are_ordered_again(
    bench: Bench,
) -> None:
    whole = np.concatenate([noise(9.0, 1e-4), noise(8.0, 0.5)])
    settings, (head, quiet, loud, _) = live(whole, 9 * 16000)
    bench.engine.admit(KEY, settings)
    told: list[EngineEvent] = []
    for chunk in (head, quiet):
        bench.engine.accept(KEY, chunk)
        told += bench.engine.step()
    opening = bench.host.orders[0]
    told += bench.bring(Tokens(0, SAID[:1], opening.ids.tolist(), 0, True))
    window = bench.host.orders[1]
    bench.engine.accept(KEY, loud)
    told += bench.engine.step()
    # It was still being prefilled; and what it brings is about a window that is another one now.
    assert bench.host.cancelled == [window.number]
    assert bench.bring(rows_of(window)) == []
    again = bench.host.orders[2]
    assert again.row_positions[0] == window.row_positions[0]
    assert len(again.row_positions) == 208
    names = [order.media.fields()["multi_modal_uuids"]["audio"] for order in (window, again)]
    assert names[0][0] not in names[1]
    bench.engine.release(KEY)
    assert bench.host.cancelled == [window.number, again.number]
