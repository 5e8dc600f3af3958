"""A stage process without its process: a session table, an engine's rounds, and what they sent."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from antiphon.errors import AntiphonError
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import StageFacts
from antiphon.runtime.server.description import StageIdentity
from antiphon.runtime.server.outbox import Outbox
from antiphon.runtime.server.stage import Reply
from antiphon.runtime.session.facts import ChunksRefused, EngineStepped, Fact
from antiphon.runtime.session.instructions import (
    Admit,
    End,
    EngineCommand,
    Feed,
    Instruction,
    Limit,
    Release,
)
from antiphon.runtime.session.plan import StageLimits, StagePlan
from antiphon.runtime.session.table import SessionTable
from antiphon.runtime.stepping.rounds import EngineRounds
from antiphon.values.history import FRAMES
from antiphon.values.sampling import Sampling
from antiphon.values.segment import SegmentKey
from antiphon_tools.simulation.engines import CountingTalker, CountingVocoder

TALKER, VOCODER = ROLES = ("talker", "code2wav")
LIMITS = StageLimits(slots=8, stall_timeout_s=5.0, hold_timeout_s=3.0, hold_bytes=1 << 20)
SAMPLING = Sampling(
    temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1
)


@dataclass(eq=False)
class SimulatedStage:
    """One boot of one replica. What the engine did waits in `batches` for the table."""

    role: str
    address: str
    boot_id: str
    commands: list[EngineCommand] = field(default_factory=list)
    batches: deque[EngineStepped] = field(default_factory=deque)
    replies: dict[str, Outbox[Reply]] = field(default_factory=dict)
    # Of sessions that have ended well, but for chunks that are not acknowledged.
    held_ends: dict[str, End] = field(default_factory=dict)
    stands_still: bool = False

    def __post_init__(self) -> None:
        goes_on_from = (FRAMES,) if self.role == TALKER else ()
        plan = StagePlan.of(PIPELINE, self.role, SAMPLING, LIMITS, goes_on_from=goes_on_from)
        self.table = SessionTable(plan)
        self.engine = CountingTalker() if self.role == TALKER else CountingVocoder()
        counted_by = {edge.name: edge.counted_by for edge in plan.outputs.values()}
        self.rounds = EngineRounds(self.engine, counted_by)

        facts = StageFacts("", "", "", SAMPLING)
        self.identity = StageIdentity(
            PIPELINE, self.role, facts, LIMITS.slots, host_id="", boot_id=self.boot_id
        )

    @property
    def name(self) -> str:
        """For the transcript."""
        return self.boot_id

    @property
    def can_step(self) -> bool:
        """Whether a round of the engine would do something."""
        return bool(self.commands or self.rounds.steppable)

    @property
    def segments(self) -> list[SegmentKey]:
        """What the engine holds."""
        return list(self.engine.segments)

    def handle(self, fact: Fact, now: float) -> list[Instruction]:
        """What the table wants done elsewhere; the engine's part is noted here.

        Raises the error that refuses a session.
        """
        done = self.table.handle(fact, now)
        elsewhere: list[Instruction] = []
        for each in done:
            if isinstance(each, Admit | Feed | Limit | Release):
                self.commands.append(each)
            else:
                elsewhere.append(each)
        return elsewhere

    def refuse(self, session_id: str, error: AntiphonError, now: float) -> list[Instruction]:
        """The consumer of a link does not want a session's chunks."""
        return self.handle(ChunksRefused(session_id, error), now)

    def step(self) -> None:
        """A round of the engine."""
        commands, self.commands = self.commands, []
        batch = self.rounds.run(commands)
        if not batch.is_empty:
            self.batches.append(batch)

    def settle(self, now: float) -> list[Instruction]:
        """The table learns of a round."""
        return self.handle(self.batches.popleft(), now)
