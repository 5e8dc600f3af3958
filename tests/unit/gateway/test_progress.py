from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from antiphon.errors import DataLoss, Internal
from antiphon.v1 import session_pb2, stage_pb2
from antiphon.values.chunk import Chunk
from antiphon.values.segment import FinishReason
from antiphon_gateway.fleet.lineup import Lineup, Member
from antiphon_gateway.sessions.events import AudioProduced, StepsAdvanced, TextProduced
from antiphon_gateway.sessions.progress import SegmentProgress

EDGES = tuple(
    stage_pb2.PipelineEdge(name=n, producer=p, consumer=c)
    for n, p, c in (
        ("input", "", "think"), ("text", "think", ""), ("mel", "think", "sing"),
        ("audio", "sing", ""),
    )
)  # fmt: skip


@pytest.fixture
def progress() -> SegmentProgress:
    description = stage_pb2.DescribeResponse()
    members = (Member("think", "a:1", description), Member("sing", "b:1", description))
    return SegmentProgress("s", Lineup(members, EDGES, frozenset({"text", "audio"})))


def text(sequence: int, words: str = "", finish: FinishReason | None = None) -> Chunk:
    tensors: dict[str, Any] = {}
    if words:
        tensors["utf8"] = np.frombuffer(words.encode(), np.uint8)
        tensors["ids"] = np.zeros(1, np.int32)
    return Chunk("s", "text", sequence=sequence, tensors=tensors,
                 segment_finished=finish is not None, finish_reason=finish)  # fmt: skip


def audio(sequence: int, frames: int, finish: FinishReason | None = None) -> Chunk:
    tensors = {"samples": np.zeros(4, np.float32), "codes": np.zeros((frames, 2), np.uint16)}
    return Chunk("s", "audio", sequence=sequence, position=9, tensors=tensors,
                 segment_finished=finish is not None, finish_reason=finish)  # fmt: skip


def report(**counts: int) -> session_pb2.SegmentReport:
    return session_pb2.SegmentReport(**counts)


def test_progress_is_complete_when_all_edges_and_reports_have_come(
    progress: SegmentProgress,
) -> None:
    assert progress.unfinished == ("think", "sing")
    delta = progress.add_chunk("think", text(0, "Hi"))
    assert isinstance(delta, TextProduced)
    assert delta.text == "Hi"
    assert progress.add_chunk("think", text(1, finish=FinishReason.STOP)) is None
    progress.add_report("think", report(input_positions=3, output_positions=2))
    assert progress.unfinished == ("sing",)
    spoken = progress.add_chunk("sing", audio(0, 2, FinishReason.LENGTH))
    assert isinstance(spoken, AudioProduced)
    assert spoken.first_sample == 9
    assert not progress.complete
    progress.add_report("sing", report())
    assert progress.complete
    finished = progress.finished()
    assert finished.finish_reason is FinishReason.LENGTH
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (3, 2)
    assert finished.usage.completion_audio_frames == 2
    assert set(finished.reports) == {"think", "sing"}


def test_steps_are_told_of_the_open_segment_alone(progress: SegmentProgress) -> None:
    steps = session_pb2.Progress(segment=0, steps_done=3, steps_due=8)
    earlier = session_pb2.Progress(segment=1, steps_done=8, steps_due=8)
    assert progress.add_steps("sing", steps) == StepsAdvanced("sing", 3, 8)
    assert progress.add_steps("sing", earlier) is None
    progress.cancel()
    assert progress.add_steps("sing", steps) is None


def test_progress_waits_for_an_edge_when_the_report_came_first(progress: SegmentProgress) -> None:
    progress.add_report("think", report())
    progress.add_report("sing", report())
    assert not progress.complete
    assert progress.unfinished == ("sing", "think")


def test_progress_takes_the_end_of_a_stream_for_a_report(progress: SegmentProgress) -> None:
    progress.add_chunk("think", text(0, finish=FinishReason.STOP))
    progress.add_chunk("sing", audio(0, 1, FinishReason.STOP))
    progress.add_end("think")
    progress.add_end("sing")
    assert progress.complete


def test_progress_refuses_the_end_of_a_stream_that_owes_an_edge(progress: SegmentProgress) -> None:
    with pytest.raises(Internal, match="before it had finished audio"):
        progress.add_end("sing")


@pytest.mark.parametrize(
    ("role", "chunk"),
    [
        ("think", text(1, "gap")),
        ("sing", text(0, "not its edge")),
        ("think", Chunk("other", "text")),
        ("think", Chunk("s", "mel")),
    ],
)
def test_progress_refuses_a_chunk_out_of_place(
    progress: SegmentProgress, role: str, chunk: Chunk
) -> None:
    with pytest.raises(DataLoss):
        progress.add_chunk(role, chunk)


def test_progress_refuses_a_chunk_after_the_last(progress: SegmentProgress) -> None:
    progress.add_chunk("think", text(0, finish=FinishReason.STOP))
    with pytest.raises(DataLoss, match="after the last"):
        progress.add_chunk("think", text(1, "more"))
