"""Talker, code2wav and a client in one thread, where every message waits to be delivered.

Each of the `MOVES` does one thing of one party if there is something to do; their order
is the test's. The engines' rounds and the tables are the real ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from antiphon.pipelines.graph import Pipeline
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import Engine
from antiphon.runtime.session.facts import (
    ChunkArrived,
    Credited,
    EngineStepped,
    SegmentRequested,
    SessionRequested,
)
from antiphon.runtime.session.instructions import (
    Admit,
    Destination,
    End,
    EngineCommand,
    Feed,
    Grant,
    Instruction,
    Limit,
    Release,
    Report,
    Send,
)
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest, StageLimits, StagePlan
from antiphon.runtime.session.table import SessionTable
from antiphon.runtime.stepping.rounds import EngineRounds
from antiphon.values.chunk import Chunk, Tensor
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import ChunkPolicy, Delivery, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING, SAMPLES_PER_FRAME, FakeEngine
from antiphon_testkit.qwen3_omni.fake_talker import FakeTalker

LIMITS = StageLimits(slots=4, stall_timeout_s=5.0, hold_timeout_s=3.0, hold_bytes=1 << 20)
DOWNSTREAM = "code2wav:1"
KEY = SegmentKey("s", 0)
POLICY = ChunkPolicy(first=1, ramp=(2, 4), steady=5)
FRAMES = 200
WINDOWS = {"codes": 8, "audio": 10 * SAMPLES_PER_FRAME}


def with_look_ahead(positions: int) -> Pipeline:
    """A pipeline whose code2wav must see so many frames beyond what it makes."""
    codes = replace(PIPELINE.edge("codes"), look_ahead=positions)
    edges = tuple(codes if edge.name == codes.name else edge for edge in PIPELINE.edges)
    return replace(PIPELINE, edges=edges)


@dataclass
class Host:
    """One stage process without its process."""

    pipeline: Pipeline
    role: str
    engine: Engine
    commands: list[EngineCommand] = field(default_factory=list)
    batches: deque[EngineStepped] = field(default_factory=deque)
    sent: deque[Chunk] = field(default_factory=deque)
    grants: deque[Grant] = field(default_factory=deque)
    ended: list[Report | End] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan = StagePlan.of(self.pipeline, self.role, NEUTRAL_SAMPLING, LIMITS)
        self.table = SessionTable(plan)
        counted_by = {edge.name: edge.counted_by for edge in plan.outputs.values()}
        self.rounds = EngineRounds(self.engine, counted_by)

    def take(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            match each:
                case Admit() | Feed() | Limit() | Release():
                    self.commands.append(each)
                case Send(_, chunk):
                    self.sent.append(chunk)
                case Grant():
                    self.grants.append(each)
                case Report() | End():
                    self.ended.append(each)

    def step(self) -> bool:
        """A round of the engine; its outcome waits for `settle`."""
        if not (self.commands or self.rounds.steppable):
            return False
        commands, self.commands = self.commands, []
        batch = self.rounds.run(commands)
        if not batch.is_empty:
            self.batches.append(batch)
        return True

    def settle(self, now: float) -> bool:
        """The table learns of a round."""
        if not self.batches:
            return False
        batch = self.batches.popleft()
        assert batch.error is None
        self.take(self.table.handle(batch, now))
        return True


class TwoStages:
    """A session `s` on both stages, with `frames` frames to make."""

    def __init__(
        self,
        frames: int,
        windows: Mapping[str, int],
        *,
        policy: ChunkPolicy | None = None,
        delivery: Mapping[str, Delivery] | None = None,
        reference: Sequence[Tensor] = (),
        look_ahead: int = 0,
    ) -> None:
        self.now = 0.0
        self.talking = FakeTalker(frames, reference)
        pipeline = with_look_ahead(look_ahead)
        self.look_ahead = look_ahead
        self.talker = Host(pipeline, "talker", self.talking)
        self.code2wav = Host(pipeline, "code2wav", FakeEngine(look_ahead))
        self.heard: list[Chunk] = []
        self.windows = windows
        self.audio_is_whole = (delivery or {}).get("audio") is Delivery.WHOLE
        routes = {"codes": (Destination(DOWNSTREAM),)}, {"audio": (Destination(),)}
        for host, route in zip((self.talker, self.code2wav), routes, strict=True):
            request = SessionRequest("s", route, windows=windows)
            host.take(host.table.handle(SessionRequested(request), self.now))
        self.open_segment(policy, delivery or {})

    def open_segment(self, policy: ChunkPolicy | None, delivery: Mapping[str, Delivery]) -> None:
        turn = SegmentRequest(0, SamplingRequest(), "", frozenset({"audio"}), delivery, policy)
        for host in (self.talker, self.code2wav):
            host.take(host.table.handle(SegmentRequested("s", turn), self.now))

    @property
    def frames_taken(self) -> int:
        """Codec frames whose audio the client has taken."""
        return _frames(self.heard)

    def carry_codes(self) -> bool:
        """The link brings a chunk."""
        if not self.talker.sent:
            return False
        arrival = ChunkArrived(self.talker.sent.popleft(), "link")
        self.code2wav.take(self.code2wav.table.handle(arrival, self.now))
        return True

    def carry_grant(self) -> bool:
        """The link brings a grant back: for no frame whose audio still waits for credit."""
        if not self.code2wav.grants:
            return False
        grant = self.code2wav.grants.popleft()
        left = self.frames_taken + _frames(self.code2wav.sent) + self.look_ahead
        assert self.audio_is_whole or grant.positions <= left + self.windows["codes"]
        table, to = self.talker.table, Destination(DOWNSTREAM)
        self.talker.take(
            table.handle(Credited(grant.key, grant.edge, to, grant.positions), self.now)
        )
        return True

    def listen(self) -> bool:
        """The client takes a chunk and grants as much anew."""
        if not self.code2wav.sent:
            return False
        chunk = self.code2wav.sent.popleft()
        self.heard.append(chunk)
        if "audio" in self.windows:
            taken = self.frames_taken * SAMPLES_PER_FRAME + self.windows["audio"]
            done = self.code2wav.table.handle(
                Credited(KEY, "audio", Destination(), taken), self.now
            )
            self.code2wav.take(done)
        return True

    @property
    def moves(self) -> list[Callable[[], bool]]:
        """Everything that can happen; each says whether it did. The client is the last."""
        return [
            self.talker.step,
            lambda: self.talker.settle(self.now),
            self.carry_codes,
            self.code2wav.step,
            lambda: self.code2wav.settle(self.now),
            self.carry_grant,
            self.listen,
        ]

    def run(self, *, client: bool) -> None:
        """Let everything happen until nothing can; without the client when it is paused."""
        moves = self.moves if client else self.moves[:-1]
        while sum(move() for move in moves):
            pass

    def samples(self) -> list[float]:
        """All that the client has heard."""
        return [s for chunk in self.heard for s in chunk.tensors.get("samples", ())]


def _frames(chunks: Iterable[Chunk]) -> int:
    return sum(len(chunk.tensors.get("codes", ())) for chunk in chunks)
