"""The gateway's side of a call. It makes attempts until the answer is complete."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from antiphon.errors import AntiphonError, ErrorCode
from antiphon.v1 import session_pb2, stage_pb2
from antiphon.values.chunk import Chunk, Tensor
from antiphon.values.history import History
from antiphon.values.sampling import SamplingRequest, stream_key
from antiphon_gateway.failover.delivered import DeliveredOutput
from antiphon_gateway.fleet.lineup import Lineup, Member
from antiphon_gateway.sessions.events import AudioProduced, SegmentFinished
from antiphon_gateway.sessions.progress import SegmentProgress
from antiphon_tools.simulation.engines import SAMPLES_PER_FRAME, audio_of
from antiphon_tools.simulation.host import ROLES, TALKER, VOCODER

LOSSES = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.DATA_LOSS})
EDGES = (("input", "", TALKER), ("codes", TALKER, VOCODER), ("audio", VOCODER, ""))


def _lineup() -> Lineup:
    edges = tuple(stage_pb2.PipelineEdge(name=n, producer=p, consumer=c) for n, p, c in EDGES)
    told = stage_pb2.DescribeResponse(sample_rate_hz=50, samples_per_frame=SAMPLES_PER_FRAME)
    members = tuple(Member(role, role, told) for role in ROLES)
    return Lineup(members, edges, frozenset({"audio"}))


LINEUP = _lineup()


@dataclass(eq=False)
class Caller:
    """A call. Its answer consists of `frames` frames that depend only on `seed`."""

    name: str
    seed: int
    frames: int
    most_attempts: int
    attempt: int = -1
    heard: list[Tensor] = field(default_factory=list)
    error: AntiphonError | None = None
    finished: bool = False
    cancelled: bool = False
    progress: SegmentProgress = field(init=False)
    delivered: DeliveredOutput = field(default_factory=DeliveredOutput)

    @property
    def session_id(self) -> str:
        """The session ID of the current attempt."""
        return f"{self.name}.{self.attempt}"

    @property
    def over(self) -> bool:
        """Whether the client has received the end of the answer."""
        return self.finished or self.cancelled or self.error is not None

    @property
    def sampling(self) -> SamplingRequest:
        """The sampling parameters of the talker."""
        return SamplingRequest(seed=self.seed, max_tokens=self.frames)

    @property
    def history(self) -> History | None:
        """The history for another attempt.

        Only every second call has one. The other calls start from the beginning.
        """
        return self.delivered.history if self.attempt and self.seed % 2 else None

    @property
    def audio(self) -> Tensor:
        """All audio that the client has received."""
        return np.concatenate(self.heard) if self.heard else np.empty(0, np.float32)

    def begin(self) -> None:
        """Start another attempt."""
        self.attempt += 1
        self.progress = SegmentProgress(self.session_id, LINEUP)
        if self.attempt:
            self.delivered.start_over()

    def take(self, role: str, chunk: Chunk) -> int | None:
        """Deliver a chunk. Returns the number of samples of this attempt if the chunk contains
        audio.

        Raises the errors of `SegmentProgress` and `DeliveredOutput`.
        """
        event = self.progress.add_chunk(role, chunk)
        if not isinstance(event, AudioProduced):
            return None
        told = self.delivered.take(event)
        if isinstance(told, AudioProduced):
            self.heard.append(told.samples)
        return event.first_sample + len(event.samples)

    def report(self, role: str) -> None:
        """Record that a stage has completed its part."""
        self.progress.add_report(role, session_pb2.SegmentReport(segment=0))

    def finish_if_complete(self) -> bool:
        """Finish the answer if it is complete and return whether it is.

        Raises the errors of `DeliveredOutput`.
        """
        if not self.progress.complete:
            return False
        end = self.progress.finished()
        assert isinstance(self.delivered.take(end), SegmentFinished)
        self.finished = True
        return True

    def goes_on(self, error: AntiphonError) -> bool:
        """Return whether another attempt follows an error. If not, the client receives the
        error.
        """
        if error.code in LOSSES and self.attempt + 1 < self.most_attempts:
            return True
        self.error = error
        return False

    def fault(self) -> str:
        """Describe an error in the client's audio. Returns an empty string if there is none."""
        expected, heard = audio_of(stream_key(self.seed, TALKER), self.frames), self.audio
        if not np.array_equal(heard, expected[: len(heard)]):
            return f"{self.name} has heard something else than its answer"
        if self.finished and not self.cancelled and len(heard) != len(expected):
            return f"{self.name} has heard {len(heard)} of {len(expected)} samples"
        return ""
