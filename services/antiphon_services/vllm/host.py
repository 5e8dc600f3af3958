"""Keeps vLLM running. An event loop on a separate thread serves the engine and restarts it.

    starting ──up──▶ serving ──a process died──▶ down ──pause──▶ starting
        └─failed─▶ down                 any ──close──▶ closed

The death of a process is detected by its sentinel, even if there are no requests. Orders that are
running fail immediately, and new segments are rejected until the engine is available again.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import threading
import time
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from vllm.exceptions import VLLMClientError
from vllm.logprobs import FlatLogprobs
from vllm.outputs import RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.prometheus import unregister_vllm_metrics

from antiphon.errors import AntiphonError, Internal, InvalidArgument, Unavailable
from antiphon.runtime.process import stand_back
from antiphon_services.vllm.background_thread import on_background_thread
from antiphon_services.vllm.mailbox import Ended, Mailbox, Tokens
from antiphon_services.vllm.order import VllmOrder
from antiphon_services.vllm.request import parameters_of, prompt_of
from antiphon_services.vllm.restarts import Restarts
from antiphon_services.vllm.schema_checker import SchemaChecker
from antiphon_services.vllm.schema_messages import SchemaVocabulary
from antiphon_services.vllm.session import SessionPart, VllmSession

RETRY_AFTER_S = 5.0
DECODED_AT_ONCE = 2
"""The maximum number of orders whose media are decoded at the same time. The limit exists because
decoded pixels take up memory.
"""
LARGE_PIXELS = 16_000_000
"""Orders with more decoded pixels than this are decoded one at a time, so that large orders don't
delay small ones.
"""
# vLLM's process takes a few seconds to unload. It is killed if it takes longer than this.
UNLOAD_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 8.0

T = TypeVar("T")
Changed = Callable[[AntiphonError | None], None]

_log = logging.getLogger(__name__)


class VllmHost:
    """Runs orders on an engine that is created by `start_engine`. If the engine dies, it is
    restarted.

    `role` is the stage's name in error messages. JSON schemas are first compiled in child processes
    for the engine's `vocabulary`. If there is no vocabulary, schemas are rejected. `nice` is the
    niceness of the thread and of vLLM's processes, as described in `StageConfig`.
    """

    def __init__(
        self,
        role: str,
        start_engine: Callable[[], AsyncLLM],
        mailbox: Mailbox,
        restarts: Restarts,
        nice: int = 0,
        vocabulary: Callable[[AsyncLLM], SchemaVocabulary] | None = None,
    ) -> None:
        self._role = role
        self._nice = nice
        self._start_engine = start_engine
        self._vocabulary = vocabulary
        self._mailbox = mailbox
        self._restarts = restarts
        self._started: Future[None] = Future()
        self._changed: Changed = _ignore
        self._fault: str | None = "it starts"
        self._state = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="vllm", daemon=True)
        # The following attributes are only used on the event loop.
        self._loop: asyncio.AbstractEventLoop
        self._closing: asyncio.Event
        self._died: asyncio.Event
        self._decoding: asyncio.Semaphore
        self._decoding_large: asyncio.Semaphore
        self._engine: AsyncLLM | None = None
        self._schemas: SchemaChecker | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._life = 0
        self._cache_positions = 0

    # -- any thread --------------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine and wait until it is ready to serve requests. If it can't be started,
        its error is raised.
        """
        self._thread.start()
        self._started.result()

    def check_up(self) -> None:
        """Raise `Unavailable` if the engine is down."""
        with self._state:
            if self._fault is not None:
                raise self._down(self._fault)

    def watch(self, changed: Changed) -> None:
        """Implements `antiphon.runtime.engine.DetachedEngine.watch`."""
        with self._state:
            self._changed = changed
            if self._fault is not None:
                changed(self._down(self._fault))

    def submit(self, order: VllmOrder) -> None:
        """Run an order. Its results are delivered to the mailbox."""
        self._loop.call_soon_threadsafe(self._begin, order)

    def open(self, session: VllmSession) -> None:
        """Start a request whose parts will follow. Its rows and any error are delivered to the
        mailbox.
        """
        self._loop.call_soon_threadsafe(self._begin, session)

    def extend(self, session: VllmSession, part: SessionPart) -> None:
        """Pass the next part to an open session."""
        self._loop.call_soon_threadsafe(session.parts.put_nowait, part)

    def cancel(self, number: int) -> None:
        """Stop an order. Results that are already in flight may still arrive."""
        self._loop.call_soon_threadsafe(self._cancel, number)

    @property
    def life(self) -> int:
        """The number of the engine's current life, which increases with each restart."""
        return self._life

    @property
    def cache_positions(self) -> int:
        """The number of positions in vLLM's paged memory. It is only valid while the engine is
        running.
        """
        return self._cache_positions

    def report_broken(self, life: int) -> None:
        """Restart the engine because one of its components has failed, unless `life` is no longer
        its current life.
        """
        self._loop.call_soon_threadsafe(self._note_death, life)

    def close(self) -> None:
        """Stop the engine and its processes."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(CLOSE_TIMEOUT_S)

    # -- event loop ----------------------------------------------------------------------------

    def _run(self) -> None:
        stand_back(self._nice)
        try:
            asyncio.run(self._live())
        except BaseException as error:
            if self._started.done():
                _log.exception("the thread that supervises vLLM has ended")
                self._end_for_good(f"the supervising thread failed: {error}")
            else:
                self._started.set_exception(error)

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self._decoding = asyncio.Semaphore(DECODED_AT_ONCE)
        self._decoding_large = asyncio.Semaphore(1)
        try:
            await self._live_on()
        finally:
            if self._schemas is not None:
                await self._schemas.close()

    async def _live_on(self) -> None:
        """Restart the engine whenever it dies, until the host is closed."""
        while not self._closing.is_set():
            self._died = asyncio.Event()
            self._life += 1
            born = time.monotonic()
            try:
                child = await self._unless_closed(
                    on_background_thread("vllm start", self._give_birth)
                )
            except Exception:
                if not self._started.done():
                    raise
                _log.exception("restarting vLLM failed")
                lived_s = 0.0
            else:
                if child is not None:
                    await self._serve(*child)
                lived_s = time.monotonic() - born
            if not self._closing.is_set():
                pause_s = self._restarts.pause_s(lived_s)
                _log.warning("restarting vLLM in %.1f s", pause_s)
                await self._unless_closed(asyncio.sleep(pause_s))

    async def _unless_closed(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of the work, or None if the host is closed before the work is
        complete.
        """
        tasks = asyncio.create_task(work), asyncio.create_task(self._closing.wait())
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        return await tasks[0] if tasks[0].done() else None

    def _give_birth(self) -> tuple[AsyncLLM, Collection[BaseProcess]]:
        """Create an engine and return it together with its processes."""
        before = set(multiprocessing.active_children())
        engine = self._start_engine()
        if self._schemas is None and self._vocabulary is not None:
            self._schemas = SchemaChecker(self._vocabulary(engine))
        return engine, set(multiprocessing.active_children()) - before

    async def _serve(self, engine: AsyncLLM, processes: Collection[BaseProcess]) -> None:
        """Run orders until the engine dies or the host is closed."""
        for process in processes:
            self._loop.add_reader(process.sentinel, self._note_death, self._life)
        if self._schemas is not None:
            self._schemas.start()
        self._engine = engine
        cache = engine.vllm_config.cache_config
        self._cache_positions = (cache.num_gpu_blocks or 0) * cache.block_size
        self._become(None)
        if not self._started.done():
            self._started.set_result(None)
        try:
            await self._unless_closed(self._died.wait())
        finally:
            closing = self._closing.is_set()
            reason = "it is shutting down" if closing else "its process died and is being restarted"
            # The engine's last report is no longer valid.
            unregister_vllm_metrics()
            self._engine = None
            self._become(reason)
            if not closing:
                _log.error("vLLM is down: %s", reason)
            for process in processes:
                self._loop.remove_reader(process.sentinel)
            await self._fail_all(reason)
            await on_background_thread("vllm end", partial(engine.shutdown, UNLOAD_TIMEOUT_S))

    async def _fail_all(self, reason: str) -> None:
        tasks = dict(self._tasks)
        for number, task in tasks.items():
            self._mailbox.put(Ended(number, self._down(reason)))
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    def _become(self, fault: str | None) -> None:
        with self._state:
            self._fault = fault
            self._changed(None if fault is None else self._down(fault))

    def _end_for_good(self, fault: str) -> None:
        """Report a permanent error. The only way to start vLLM again is to restart this process."""
        with self._state:
            self._fault = fault
            self._changed(Internal(f"{self._role}: vLLM is down: {fault}"))

    def _down(self, reason: str) -> Unavailable:
        message = f"{self._role}: vLLM is down: {reason}"
        return Unavailable(message, retry_after_s=RETRY_AFTER_S)

    def _note_death(self, life: int) -> None:
        # A late report may refer to an earlier life.
        if life == self._life:
            self._died.set()

    def _begin(self, order: VllmOrder | VllmSession) -> None:
        if self._engine is None:
            self._mailbox.put(Ended(order.number, self._down("its process died")))
            return
        task = self._loop.create_task(self._carry_out(self._engine, self._life, order))
        self._tasks[order.number] = task
        task.add_done_callback(lambda _: self._tasks.pop(order.number))

    def _cancel(self, number: int) -> None:
        if (task := self._tasks.get(number)) is not None:
            task.cancel()

    async def _carry_out(self, engine: AsyncLLM, life: int, order: VllmOrder | VllmSession) -> None:
        """Run a single order. If this call is cancelled, vLLM's request is aborted."""
        number = order.number
        try:
            if isinstance(order, VllmSession):
                parameters = order.parameters()
                async for _ in engine.generate(order.inputs(parameters), parameters, str(number)):
                    """The IDs that vLLM samples are ignored."""
            else:
                await self._generate(engine, order)
        except EngineDeadError:
            self._note_death(life)
            self._mailbox.put(Ended(number, self._down("its process died")))
        except AntiphonError as error:
            self._mailbox.put(Ended(number, error))
        except (VLLMClientError, ValueError) as error:
            self._mailbox.put(Ended(number, _refused(order, error)))
        except Exception as error:
            _log.exception("request %d failed", number)
            cause = error.__cause__ or error
            fault = Internal(f"{self._role}: vLLM failed: {type(cause).__name__}: {cause}")
            self._mailbox.put(Ended(number, fault))

    async def _generate(self, engine: AsyncLLM, order: VllmOrder) -> None:
        """Deliver an order's IDs to the mailbox as they arrive."""
        await self._check_schema(order)
        parameters = parameters_of(order)
        prompt = await self._render(engine, order)
        first = True
        async for output in engine.generate(prompt, parameters, str(order.number)):
            self._mailbox.put(_tokens(order.number, output, first=first))
            first = False

    async def _check_schema(self, order: VllmOrder) -> None:
        """If the order has a JSON schema, raise an error unless vLLM can compile the schema within
        the limits.
        """
        if (schema := order.sampling.json_schema) is None:
            return
        if self._schemas is None:
            raise InvalidArgument(
                "json_schema: this engine can't restrict text to a schema; leave it out",
                field="json_schema",
            )
        await self._schemas.check(schema)

    async def _render(self, engine: AsyncLLM, order: VllmOrder) -> Any:
        """Return the order's prompt in the form that vLLM expects."""
        if not order.media.takes_long:
            return (await engine.renderer.render_cmpl_async([prompt_of(order)]))[0]
        is_large = order.media.decoded_pixels > LARGE_PIXELS
        async with self._decoding_large if is_large else self._decoding:
            prompt = await on_background_thread("decoding", partial(prompt_of, order))
            return (await engine.renderer.render_cmpl_async([prompt]))[0]


def _tokens(number: int, output: RequestOutput, *, first: bool) -> Tokens:
    """Convert one of vLLM's updates, which may contain several IDs.

    Log probabilities are passed on in vLLM's format.
    """
    update = output.outputs[0]
    flat = update.logprobs
    return Tokens(
        number,
        list(update.token_ids),
        output.prompt_token_ids if first else None,
        output.num_cached_tokens or 0,
        output.finished,
        flat if isinstance(flat, FlatLogprobs) else None,
    )


def _refused(order: VllmOrder | VllmSession, error: Exception) -> InvalidArgument:
    """Return the error for an order that vLLM has rejected.

    If the order has a schema, the error refers to it. The prompt can't be the cause because it has
    already been validated, whereas vLLM checks schemas more strictly than xgrammar.
    """
    if isinstance(order, VllmOrder) and order.sampling.json_schema is not None:
        return InvalidArgument(
            f"json_schema: is not supported by vLLM: {error}", field="json_schema"
        )
    return InvalidArgument(f"messages: were rejected by vLLM: {error}", field="messages")


def _ignore(fault: AntiphonError | None) -> None:
    """The default callback for `watch`, which does nothing."""
