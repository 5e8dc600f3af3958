"""Images and videos are decoded beside the loop that talks to vLLM, a few orders at a time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument
from antiphon.values.sampling import Sampling
from antiphon_services.qwen3_omni.thinker.vllm_engine.architectures import MODELS
from antiphon_services.thinker.vision import Visual
from antiphon_services.thinker.vllm_engine.prompt_media import PromptMedia
from antiphon_services.vllm import environment
from antiphon_services.vllm.mailbox import Delivery, Ended, Mailbox, Tokens
from antiphon_services.vllm.order import VllmOrder
from antiphon_services.vllm.restarts import Restarts

pytestmark = [
    pytest.mark.skipif(not environment.is_installed(), reason="needs vLLM"),
    # vLLM and what it imports warn of their own futures.
    pytest.mark.filterwarnings("default"),
]

GREEDY = Sampling(0.0, 50, 1.0, 1.0, seed=0, max_tokens=1)
STOP = 7
TIMEOUT_S = 60


class Answering:
    """An engine that says the stop id to everything, and notes what it was asked."""

    vllm_config = SimpleNamespace(cache_config=SimpleNamespace(num_gpu_blocks=1, block_size=16))

    def __init__(self) -> None:
        self.prompts: list[dict[str, Any]] = []
        self.renderer = self

    async def render_cmpl_async(self, prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self.prompts += prompts
        return prompts

    async def generate(self, prompt: Any, parameters: Any, id_: str) -> AsyncIterator[Any]:
        said = SimpleNamespace(token_ids=[STOP], logprobs=None)
        yield SimpleNamespace(
            outputs=[said], prompt_token_ids=[1], num_cached_tokens=0, finished=True
        )

    def shutdown(self, timeout: float) -> None:
        pass


class Bench:
    """A host with such an engine."""

    def __init__(self) -> None:
        self.engine, self.mailbox = Answering(), Mailbox()
        self._numbers = itertools.count()
        environment.prepare(StageConfig(engine="vllm"), MODELS)
        from antiphon_services.vllm.host import DECODED_AT_ONCE, VllmHost

        self.at_once = DECODED_AT_ONCE
        start: Any = lambda: self.engine  # noqa: E731
        self.host = VllmHost("thinker", start, self.mailbox, Restarts())
        self.host.start()

    def order(self, *pixels: Callable[[], Any], decoded: int = 1) -> int:
        """Submit an order that shows these, of `decoded` pixels each; its number."""
        number = next(self._numbers)
        visuals = [Visual("image", (1, 1, 1), 1, each, decoded) for each in pixels]
        nothing = np.empty(0, np.intp)
        ids = np.array([1, 2], np.int32)
        self.host.submit(VllmOrder(number, ids, PromptMedia((), visuals), nothing, GREEDY, STOP, 1))
        return number

    def take(self, count: int) -> Sequence[Delivery]:
        """The next deliveries."""
        taken: list[Delivery] = []
        while len(taken) < count:
            came = self.mailbox.take(TIMEOUT_S)
            assert came, "nothing comes"
            taken += came
        return taken


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.host.close()


def test_words_pass_while_only_so_many_orders_are_decoded(bench: Bench) -> None:
    begun, go, running, most = threading.Semaphore(0), threading.Event(), 0, 0
    count = threading.Lock()

    def pixels() -> Image.Image:
        nonlocal running, most
        with count:
            running += 1
            most = max(most, running)
        begun.release()
        assert go.wait(TIMEOUT_S)
        with count:
            running -= 1
        return Image.new("RGB", (1, 1))

    shown = [bench.order(pixels) for _ in range(2 * bench.at_once)]
    for _ in range(bench.at_once):
        assert begun.acquire(timeout=TIMEOUT_S)
    words = bench.order()
    (first,) = bench.take(1)
    assert isinstance(first, Tokens)
    assert first.number == words
    assert most == bench.at_once
    go.set()
    assert {each.number for each in bench.take(len(shown))} == set(shown)
    assert most == bench.at_once
    seen = [each for each in bench.engine.prompts if "multi_modal_data" in each]
    assert all(len(each["multi_modal_data"]["image"]) == 1 for each in seen)
    assert len(seen) == len(shown)


def test_small_images_do_not_wait_for_large_ones(bench: Bench) -> None:
    begun, go = threading.Semaphore(0), threading.Event()

    def large() -> Image.Image:
        begun.release()
        assert go.wait(TIMEOUT_S)
        return Image.new("RGB", (1, 1))

    shown = [bench.order(large, decoded=64_000_000) for _ in range(3)]
    assert begun.acquire(timeout=TIMEOUT_S)
    small = bench.order(lambda: Image.new("RGB", (1, 1)))
    (first,) = bench.take(1)
    assert first.number == small
    # The other large ones wait for the first.
    assert not begun.acquire(blocking=False)
    go.set()
    assert [each.number for each in bench.take(3)] == shown


def test_order_ends_with_the_fault_of_its_file(bench: Bench) -> None:
    fault = InvalidArgument("image.0: cut", field="image.0")

    def pixels() -> Image.Image:
        raise fault

    number = bench.order(pixels)
    assert bench.take(1) == [Ended(number, fault)]
    words = bench.order()
    (after,) = bench.take(1)
    assert (after.number, bench.engine.prompts) == (words, [{"prompt_token_ids": [1, 2]}])
