"""A simulated stage process, with a session table, engine rounds, and the messages it has sent."""

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
    """An instance of a replica.

    `batches` contains results of the engine that the session table has not processed yet.
    """

    role: str
    address: str
    boot_id: str
    commands: list[EngineCommand] = field(default_factory=list)
    batches: deque[EngineStepped] = field(default_factory=deque)
    replies: dict[str, Outbox[Reply]] = field(default_factory=dict)
    # The ends of successful sessions that still have unacknowledged chunks.
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
        """The name of the replica in transcripts."""
        return self.boot_id

    @property
    def can_step(self) -> bool:
        """Whether an engine round would have any effect."""
        return bool(self.commands or self.rounds.steppable)

    @property
    def segments(self) -> list[SegmentKey]:
        """The segments that the engine holds."""
        return list(self.engine.segments)

    def handle(self, fact: Fact, now: float) -> list[Instruction]:
        """Let the session table handle a fact and return its instructions for other components.

        Instructions for the engine are stored. Raises the error with which a session is rejected.
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
        """Record that the consumer of a link has refused the chunks of a session."""
        return self.handle(ChunksRefused(session_id, error), now)

    def step(self) -> None:
        """Run an engine round."""
        commands, self.commands = self.commands, []
        batch = self.rounds.run(commands)
        if not batch.is_empty:
            self.batches.append(batch)

    def settle(self, now: float) -> list[Instruction]:
        """Let the session table process the result of an engine round."""
        return self.handle(self.batches.popleft(), now)
