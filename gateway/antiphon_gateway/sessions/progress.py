"""Tracks the progress of a segment and turns messages from the stages into events. This module
performs no I/O.

A segment is complete when every requested edge has sent `segment_finished` and every stage has
either sent its report or ended its stream. If the segment was cancelled, it doesn't wait for the
edges.
"""

from __future__ import annotations

import numpy as np

from antiphon.deployment.gateway_config import MAX_IMAGE_BYTES
from antiphon.errors import DataLoss, Internal
from antiphon.v1 import session_pb2
from antiphon.values.chunk import Chunk, Tensor
from antiphon.values.segment import FinishReason
from antiphon.wire.logprobs import logprobs_from_tensors
from antiphon_gateway.fleet.lineup import Lineup
from antiphon_gateway.outputs import AUDIO, IMAGE, TEXT, TOOL_CALLS
from antiphon_gateway.sessions.call_reader import CallReader
from antiphon_gateway.sessions.events import (
    AudioProduced,
    ImageProduced,
    SegmentFinished,
    SegmentUsage,
    StepsAdvanced,
    TextProduced,
    ToolCallsProduced,
)
from antiphon_gateway.sessions.image_reader import ImageReader

_NO_FRAMES: Tensor = np.empty((0, 0), np.uint16)
_WORST_FIRST = (FinishReason.CANCELLED, FinishReason.LENGTH, FinishReason.STOP)


class SegmentProgress:
    """The messages of a segment that have been received so far.

    `sequences` counts the chunks on each edge, across all segments of the session.
    """

    def __init__(
        self,
        session_id: str,
        lineup: Lineup,
        segment: int = 0,
        sequences: dict[str, int] | None = None,
        *,
        max_image_bytes: int = MAX_IMAGE_BYTES,
    ) -> None:
        self._session_id = session_id
        self._segment = segment
        self._input_role = lineup.input_member.role
        self._makers = {output: lineup.producer(output).role for output in lineup.outputs}
        self._reasons: dict[str, FinishReason] = {}
        self._sequences = {} if sequences is None else sequences
        self._reports: dict[str, session_pb2.SegmentReport] = {}
        self._running = dict.fromkeys(lineup.roles)
        self._cancelled = False
        self._text_role = lineup.makers.get(TEXT, "")
        self._samples_per_frame = lineup.samples_per_frame
        self._frames = self._samples = 0
        self._images = ImageReader(max_image_bytes)
        # The session ID is unique, so the IDs of its function calls are unique as well.
        calls = CallReader(f"call_{session_id.replace('-', '')}_{segment}")
        self._read = {
            TEXT: self._text,
            AUDIO: self._audio,
            IMAGE: self._images.read,
            TOOL_CALLS: calls.read,
        }

    @property
    def complete(self) -> bool:
        """Whether the segment is complete."""
        ended = self._cancelled or len(self._reasons) == len(self._makers)
        return ended and not self._running

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The roles that haven't sent their report or haven't finished one of their edges, upstream
        first.
        """
        owing = {role for edge, role in self._makers.items() if edge not in self._reasons}
        return tuple(dict.fromkeys((*self._running, *sorted(owing))))

    def cancel(self) -> None:
        """Discard all further chunks."""
        self._cancelled = True

    def add_refusal(self, role: str) -> None:
        """Record that a stage had no slot for the segment."""
        self._running.pop(role, None)

    def add_chunk(
        self, role: str, chunk: Chunk
    ) -> TextProduced | AudioProduced | ImageProduced | ToolCallsProduced | None:
        """Convert a chunk to an event. If the chunk contains only flags, returns None.

        Raises `DataLoss` if the chunk is invalid or out of order.
        """
        self._check(role, chunk)
        self._sequences[chunk.edge] = chunk.sequence + 1
        if chunk.finish_reason is not None:
            self._reasons[chunk.edge] = chunk.finish_reason
        if self._cancelled:
            return None
        try:
            return self._read[chunk.edge](chunk)
        except (KeyError, UnicodeDecodeError) as error:
            raise DataLoss(
                f"{chunk.edge}: can't parse the chunk: {error}", stage=role, edge=chunk.edge
            ) from error

    def add_steps(self, role: str, progress: session_pb2.Progress) -> StepsAdvanced | None:
        """Convert a progress message to an event. Returns None if the message is for an earlier
        segment or if this segment was cancelled.
        """
        if self._cancelled or progress.segment != self._segment:
            return None
        return StepsAdvanced(role, progress.steps_done, progress.steps_due)

    def add_report(self, role: str, report: session_pb2.SegmentReport) -> None:
        """Record that a stage has completed its part. Raises `DataLoss` if the report is for
        another segment.
        """
        if report.segment != self._segment:
            raise DataLoss(
                f"the stage {role} reported the wrong segment, {report.segment}", stage=role
            )
        self._reports[role] = report
        self._running.pop(role, None)

    def add_end(self, role: str) -> None:
        """Record that a stage has ended its stream. Raises `Internal` if it hasn't finished all of
        its edges.
        """
        self._running.pop(role, None)
        owed = [e for e, maker in self._makers.items() if maker == role and e not in self._reasons]
        if owed and not self._cancelled:
            raise Internal(
                f"the stage {role} ended the session before it had finished {owed[0]}",
                stage=role,
                edge=owed[0],
            )

    def finished(self) -> SegmentFinished:
        """Return the last event of a complete segment."""
        none = session_pb2.SegmentReport()
        report = self._reports.get(self._input_role, none)
        frames = self._frames
        if not frames and self._samples_per_frame:
            frames = round(self._samples / self._samples_per_frame)
        usage = SegmentUsage(
            prompt_tokens=report.input_positions,
            prompt_audio_tokens=report.input_audio_positions,
            prompt_image_tokens=report.input_image_positions,
            prompt_cached_tokens=report.input_cached_positions,
            completion_tokens=self._reports.get(self._text_role, none).output_positions,
            completion_audio_frames=frames,
            completion_image_tokens=self._images.positions,
        )
        reasons = {*self._reasons.values(), *([FinishReason.CANCELLED] * self._cancelled)}
        reason = next(each for each in _WORST_FIRST if each in reasons)
        return SegmentFinished(reason, usage, dict(self._reports))

    def _check(self, role: str, chunk: Chunk) -> None:
        """Raise `DataLoss` unless this is the next chunk on an open edge of the segment."""
        edge, expected = chunk.edge, self._sequences.get(chunk.edge, 0)
        here = (self._session_id, self._segment)
        if (chunk.session_id, chunk.segment) != here or self._makers.get(edge) != role:
            raise DataLoss(
                f"the stage {role} sent a chunk of an edge that it doesn't produce", stage=role
            )
        if chunk.sequence != expected:
            raise DataLoss(
                f"{edge}: received chunk {chunk.sequence} instead of chunk {expected}",
                stage=role,
                edge=edge,
            )
        if edge in self._reasons:
            raise DataLoss(f"{edge}: received a chunk after the last one", stage=role, edge=edge)

    def _text(self, chunk: Chunk) -> TextProduced | None:
        if not chunk.tensors:
            return None
        text = chunk.tensors["utf8"].tobytes().decode()
        return TextProduced(text, chunk.tensors["ids"], logprobs_from_tensors(chunk.tensors))

    def _audio(self, chunk: Chunk) -> AudioProduced | None:
        if not chunk.tensors:
            return None
        samples = chunk.tensors["samples"]
        beside = (each for name, each in chunk.tensors.items() if name != "samples")
        frames = next(beside, _NO_FRAMES)
        self._samples += len(samples)
        self._frames += len(frames)
        return AudioProduced(samples, frames, chunk.position)
