"""The vLLM engine with a host that is told what comes of its orders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from antiphon.errors import AntiphonError
from antiphon.pipelines.files import read_config
from antiphon.runtime.engine import Emitted, EngineEvent
from antiphon.values.segment import SegmentKey
from antiphon_services.thinker.intake import PromptIntake
from antiphon_services.thinker.vllm_engine.engine import VllmThinkerEngine
from antiphon_services.thinker.vllm_engine.prompt_check import PromptCheck
from antiphon_services.vllm.mailbox import Delivery, Mailbox
from antiphon_services.vllm.order import VllmOrder

KEY = SegmentKey("s", 0)


class Told:
    """A host that does nothing by itself."""

    def __init__(self) -> None:
        self.fault: AntiphonError | None = None
        self.orders: list[VllmOrder] = []
        self.cancelled: list[int] = []

    def check_up(self) -> None:
        if self.fault is not None:
            raise self.fault

    def watch(self, changed: Callable[[AntiphonError | None], None]) -> None:
        changed(self.fault)

    def submit(self, order: VllmOrder) -> None:
        self.orders.append(order)

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)


class Bench:
    """An engine, its host and its mailbox."""

    def __init__(self, directory: Path, intake: PromptIntake) -> None:
        self.intake, self.host, self.mailbox = intake, Told(), Mailbox()
        vocabulary = read_config(directory)["thinker_config"]["text_config"]["vocab_size"]
        check = PromptCheck(intake.prompts.special, vocabulary, hears=True)
        self.engine = VllmThinkerEngine(intake, check, self.host, self.mailbox, close=lambda: None)

    def begin(self, given: tuple[object, list[object]], key: SegmentKey = KEY) -> list[EngineEvent]:
        """A segment up to its order."""
        settings, (chunk,) = given
        self.engine.admit(key, settings)  # type: ignore[arg-type]
        self.engine.accept(key, chunk)  # type: ignore[arg-type]
        return list(self.engine.step())

    def bring(self, *deliveries: Delivery) -> list[EngineEvent]:
        """One step that finds these."""
        for delivery in deliveries:
            self.mailbox.put(delivery)
        return list(self.engine.step())


def ids_of(events: list[EngineEvent], edge: str) -> list[int]:
    """All ids on an edge."""
    chunks = [each for each in events if isinstance(each, Emitted) and each.edge == edge]
    return [id_ for each in chunks if "ids" in each.tensors for id_ in each.tensors["ids"].tolist()]
