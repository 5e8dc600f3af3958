"""How far a call has come: stage messages in, events out. Pure.

A call is complete when every wanted edge has had its `segment_finished` and
every stage has sent its report or has ended its stream.
"""

from __future__ import annotations

from antiphon.chunk import Chunk
from antiphon.errors import DataLoss, Internal
from antiphon.segment import FinishReason
from antiphon.v1 import session_pb2
from antiphon.wire.logprobs import logprobs_from_tensors
from gateway.calls.events import AudioDelta, Finished, TextDelta, Usage
from gateway.calls.request import TEXT
from gateway.fleet.lineup import Lineup

_WORST_FIRST = (FinishReason.CANCELLED, FinishReason.LENGTH, FinishReason.STOP)


class Progress:
    """What one call has received so far."""

    def __init__(self, session_id: str, lineup: Lineup) -> None:
        self._session_id = session_id
        self._input_role = lineup.input_member.role
        self._makers = {output: lineup.producer(output).role for output in lineup.outputs}
        self._reasons: dict[str, FinishReason] = {}
        self._sequences = dict.fromkeys(lineup.outputs, 0)
        self._reports: dict[str, session_pb2.SegmentReport] = {}
        self._running = dict.fromkeys(lineup.roles)
        self._frames = 0

    @property
    def complete(self) -> bool:
        """Whether nothing more is to come."""
        return not self._running and len(self._reasons) == len(self._makers)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The roles that have not reported yet or still owe an edge, upstream first."""
        owing = {role for edge, role in self._makers.items() if edge not in self._reasons}
        return tuple(dict.fromkeys((*self._running, *sorted(owing))))

    def add_chunk(self, role: str, chunk: Chunk) -> TextDelta | AudioDelta | None:
        """The event that a chunk amounts to; None when it carries flags only.

        Raises `DataLoss` for a chunk out of order or one that makes no sense.
        """
        self._check(role, chunk)
        self._sequences[chunk.edge] += 1
        if chunk.finish_reason is not None:
            self._reasons[chunk.edge] = chunk.finish_reason
        try:
            return self._text(chunk) if chunk.edge == TEXT else self._audio(chunk)
        except (KeyError, UnicodeDecodeError) as error:
            raise DataLoss(
                f"{chunk.edge}: the chunk cannot be read: {error}", stage=role, edge=chunk.edge
            ) from error

    def add_report(self, role: str, report: session_pb2.SegmentReport) -> None:
        """A stage has finished its part."""
        self._reports[role] = report
        self._running.pop(role, None)

    def add_end(self, role: str) -> None:
        """A stage has ended its stream. Raises `Internal` when it still owes an edge."""
        self._running.pop(role, None)
        owed = [e for e, maker in self._makers.items() if maker == role and e not in self._reasons]
        if owed:
            raise Internal(
                f"the stage {role} ended the session before it had finished {owed[0]}",
                stage=role,
                edge=owed[0],
            )

    def finished(self) -> Finished:
        """The last event of a complete call."""
        report = self._reports.get(self._input_role, session_pb2.SegmentReport())
        usage = Usage(
            prompt_tokens=report.input_positions,
            prompt_audio_tokens=report.input_audio_positions,
            prompt_image_tokens=report.input_image_positions,
            prompt_cached_tokens=report.input_cached_positions,
            completion_tokens=report.output_positions,
            completion_audio_frames=self._frames,
        )
        reasons = self._reasons.values()
        reason = next(each for each in _WORST_FIRST if each in reasons)
        return Finished(reason, usage, dict(self._reports))

    def _check(self, role: str, chunk: Chunk) -> None:
        """Raise unless the chunk is the next one of an open edge of this call."""
        edge = chunk.edge
        if chunk.session_id != self._session_id or self._makers.get(edge) != role:
            raise DataLoss(f"the stage {role} sent a chunk that is not its own", stage=role)
        if chunk.sequence != self._sequences[edge]:
            raise DataLoss(
                f"{edge}: chunk {chunk.sequence} came, {self._sequences[edge]} was expected",
                stage=role,
                edge=edge,
            )
        if edge in self._reasons:
            raise DataLoss(f"{edge}: a chunk came after the last one", stage=role, edge=edge)

    def _text(self, chunk: Chunk) -> TextDelta | None:
        if not chunk.tensors:
            return None
        text = chunk.tensors["utf8"].tobytes().decode()
        return TextDelta(text, chunk.tensors["ids"], logprobs_from_tensors(chunk.tensors))

    def _audio(self, chunk: Chunk) -> AudioDelta | None:
        if not chunk.tensors:
            return None
        delta = AudioDelta(chunk.tensors["samples"], chunk.tensors["codes"], chunk.position)
        self._frames += len(delta.codes)
        return delta
