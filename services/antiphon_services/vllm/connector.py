"""The KV connector that reads the tap: which rows a step has made, and off with them.

vLLM makes one in the scheduler, which says what leaves, and one in each worker, which
sends it. An exception in any method would end the engine for everybody, so what goes
wrong is logged and fails the request alone: its rows are missing at the other end.

A prompt's rows may be as large as the keys and values of a small model, and a prefix-cache hit
has them all at once. So a step takes out so many rows at most, and none while the stage is
behind: what is left stays in paged memory. When a request ends, its blocks may be used again
from the next forward on; what it still has there is taken out before that.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from typing import Any

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from antiphon_services.vllm.row_receiver import RowAddress
from antiphon_services.vllm.row_sender import RowSender
from antiphon_services.vllm.spans import NO_END, TAP_LAYER, StepRows, Wanted, share

_log = logging.getLogger(__name__)


ROW_STEPS = 16
"""Steps that may take rows out before those that wait fill what they may take."""
BEHIND_STEPS = 2
"""From so many on that wait, the stage is behind."""


@dataclass
class RowMetadata(KVConnectorMetadata):
    """What the scheduler tells the workers of a step: rows that are there when it is done, and
    those of requests that have ended, which are taken out before it begins."""

    rows: StepRows
    ended: StepRows


@dataclass
class RowsWaiting(KVConnectorWorkerMetadata):
    """What a worker tells the scheduler: how much it keeps for the stage to take."""

    size_bytes: int

    def aggregate(self, other: KVConnectorWorkerMetadata) -> RowsWaiting:
        """Of several workers one sends, and the others tell nothing."""
        assert isinstance(other, RowsWaiting)
        return RowsWaiting(self.size_bytes + other.size_bytes)


class RowConnector(KVConnectorBase_V1, SupportsHMA):
    """Hands the rows that requests want to the stage. Loads nothing, delays nothing."""

    # True would discard what a preempted request has in flight: for blocks that move.
    requires_kv_delivery = False

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._address = RowAddress(extra["name"], extra["secret"])
        self._most_bytes: int = extra["waiting_bytes"]
        self._group, self._block_size = _tap_group(kv_cache_config)
        # In the scheduler.
        model = vllm_config.model_config
        row_bytes = model.hf_text_config.hidden_size * model.dtype.itemsize
        self._step_rows = max(1, self._most_bytes // ROW_STEPS // row_bytes)
        self._wanted: dict[str, Wanted] = {}
        self._ended = StepRows()
        self._waiting_bytes = 0
        # In a worker.
        self._cache: torch.Tensor | None = None
        self._sender: RowSender | None = None
        self._told_bytes = 0

    # -- in the scheduler --------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        """Note which rows the request wants."""
        try:
            wanted = Wanted.of(request.kv_transfer_params)
        except Exception:
            _log.exception("request %s: cannot tell which rows it wants", request.request_id)
            return
        if wanted is not None:
            self._wanted[request.request_id] = wanted

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> RowMetadata:
        """The rows that this step makes or finds in the prefix cache, and those left behind."""
        rows, (ended, self._ended) = StepRows(), (self._ended, StepRows())
        if self._wanted:
            try:
                self._collect(scheduler_output, rows)
            except Exception:
                _log.exception("cannot tell which hidden rows this step makes")
        return RowMetadata(rows, ended)

    def _collect(self, step: SchedulerOutput, rows: StepRows) -> None:
        cached = step.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed |= {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}
        ids: dict[int, str] = {}
        for id_ in self._wanted.keys() & step.num_scheduled_tokens.keys():
            drafted = len(step.scheduled_spec_decode_tokens.get(id_, ()))
            request = self._wanted[id_]
            request.computed = computed[id_] + step.num_scheduled_tokens[id_] - drafted
            ids[request.number] = id_
        behind = self._waiting_bytes > self._most_bytes * BEHIND_STEPS // ROW_STEPS
        requests = [self._wanted[id_] for id_ in ids.values()]
        for request, spans in share(requests, 0 if behind else self._step_rows):
            tables = step.kv_connector_block_state.get_block_ids(ids[request.number])
            rows.add(spans, tables[self._group], self._block_size)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Note how far the stage is behind."""
        told = connector_output.kv_connector_worker_meta
        if isinstance(told, RowsWaiting):
            self._waiting_bytes = told.size_bytes

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Forget the request; its blocks may go when what is left of its rows is taken out."""
        wanted = self._wanted.pop(request.request_id, None)
        if wanted is not None and wanted.waiting:
            try:
                # One that was thrown out to be computed again has no blocks.
                table = block_ids[self._group]
                wanted.computed = min(wanted.computed, len(table) * self._block_size)
                self._ended.add(wanted.take(NO_END), table, self._block_size)
            except Exception:
                _log.exception("cannot tell which hidden rows a request has left")
        return False, None

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Nothing is ever loaded."""
        return 0, False

    def update_state_after_alloc(
        self, request: Request, blocks: Any, num_external_tokens: int
    ) -> None:
        """Nothing is ever loaded."""

    # -- in a worker -------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take note of the tap's memory; the first of the ranks that hold the same sends it."""
        if get_tensor_model_parallel_rank() != 0:
            return
        try:
            self._cache = kv_caches[TAP_LAYER]
            connection = self._address.connect()
            self._sender = RowSender.on(self._cache.device, connection, self._most_bytes)
        except (OSError, AuthenticationError, KeyError) as error:
            raise RuntimeError(f"hidden rows cannot leave: {error!r}") from error

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Before the forward: send what is left of requests that have ended. Never waits."""
        assert isinstance(kv_connector_metadata, RowMetadata)
        self._send(kv_connector_metadata.ended)

    def wait_for_save(self) -> None:
        """After the forward: send what the scheduler named. Never waits."""
        self._send(self._get_connector_metadata().rows)

    def _send(self, rows: StepRows) -> None:
        if self._sender is None or self._cache is None or not rows.spans:
            return
        try:
            slots = torch.from_numpy(np.concatenate(rows.slots))
            self._sender.send_nowait(rows.spans, self._cache, slots)
        except Exception:
            _log.exception("the hidden rows of a step were lost")

    def build_connector_worker_meta(self) -> RowsWaiting | None:
        """What waits for the stage, whenever it is another amount than was told."""
        waiting = self._sender.waiting_bytes if self._sender is not None else 0
        if waiting == self._told_bytes:
            return None
        self._told_bytes = waiting
        return RowsWaiting(waiting)

    def shutdown(self) -> None:
        """End the sender."""
        if self._sender is not None:
            self._sender.close()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing is ever loaded."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is ever loaded."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Python does not run here when a CUDA graph is replayed: see `wait_for_save`."""


def _tap_group(config: KVCacheConfig) -> tuple[int, int]:
    """Index and block size of the cache group that the tap is in."""
    for index, group in enumerate(config.kv_cache_groups):
        if TAP_LAYER in group.layer_names:
            return index, group.kv_cache_spec.block_size
    raise RuntimeError(f"vLLM's cache has no layer {TAP_LAYER}")
