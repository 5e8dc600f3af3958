"""The KV connector that reads the tap. It selects the rows of each step and sends them.

vLLM creates one connector in the scheduler, which selects rows, and one in each worker, which sends
them. An exception in any of these methods would stop the engine for all sessions. Errors are
therefore logged. They only affect the request in which they occur. The receiver then detects that
this request's rows are missing.

A prompt's rows can take as much space as the keys and values of a small model. If the prompt is in
the prefix cache, all of its rows become available at once. The connector therefore limits the
number of rows that it extracts per step and doesn't extract any rows while the stage is behind. The
remaining rows stay in paged memory. When a request ends, the next forward pass may reuse its
blocks, so all rows that are still in these blocks are extracted before it.
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
"""The number of steps whose rows fit into the buffer for waiting rows."""
BEHIND_STEPS = 2
"""The stage counts as behind if the rows of this many steps are waiting."""


@dataclass
class RowMetadata(KVConnectorMetadata):
    """The scheduler's instructions to the workers for one step.

    `rows` become available during the step and are sent after it. `ended` contains the rows of
    requests that have ended. They are extracted before the step begins.
    """

    rows: StepRows
    ended: StepRows


@dataclass
class RowsWaiting(KVConnectorWorkerMetadata):
    """A worker's report to the scheduler, with the number of bytes that are waiting to be sent to
    the stage.
    """

    size_bytes: int

    def aggregate(self, other: KVConnectorWorkerMetadata) -> RowsWaiting:
        """Add up the reports of all workers. Only one of them actually sends rows."""
        assert isinstance(other, RowsWaiting)
        return RowsWaiting(self.size_bytes + other.size_bytes)


class RowConnector(KVConnectorBase_V1, SupportsHMA):
    """Sends requested rows to the stage. It neither loads keys and values nor delays requests."""

    # If this were True, rows in flight would be discarded when a request is preempted, which is
    # meant for connectors that move blocks.
    requires_kv_delivery = False

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._address = RowAddress(extra["name"], extra["secret"])
        self._most_bytes: int = extra["waiting_bytes"]
        self._group, self._block_size = _tap_group(kv_cache_config)
        # Used in the scheduler.
        model = vllm_config.model_config
        row_bytes = model.hf_text_config.hidden_size * model.dtype.itemsize
        self._step_rows = max(1, self._most_bytes // ROW_STEPS // row_bytes)
        self._wanted: dict[str, Wanted] = {}
        self._ended = StepRows()
        self._waiting_bytes = 0
        # Used in a worker.
        self._cache: torch.Tensor | None = None
        self._sender: RowSender | None = None
        self._told_bytes = 0

    # -- scheduler ---------------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        """Store which rows the request needs."""
        try:
            wanted = Wanted.of(request.kv_transfer_params)
        except Exception:
            _log.exception("request %s: can't determine which rows it needs", request.request_id)
            return
        if wanted is not None:
            self._wanted[request.request_id] = wanted

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> RowMetadata:
        """Return the rows that this step computes or finds in the prefix cache, and the rows left
        over from earlier steps.
        """
        rows, (ended, self._ended) = StepRows(), (self._ended, StepRows())
        if self._wanted:
            try:
                self._collect(scheduler_output, rows)
            except Exception:
                _log.exception("can't determine which hidden rows this step produces")
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
        """Record how far behind the stage is."""
        told = connector_output.kv_connector_worker_meta
        if isinstance(told, RowsWaiting):
            self._waiting_bytes = told.size_bytes

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Remove the request. Its blocks may be freed once the remaining rows have been
        extracted.
        """
        wanted = self._wanted.pop(request.request_id, None)
        if wanted is not None and wanted.waiting:
            try:
                # A preempted request doesn't have any blocks.
                table = block_ids[self._group]
                wanted.computed = min(wanted.computed, len(table) * self._block_size)
                self._ended.add(wanted.take(NO_END), table, self._block_size)
            except Exception:
                _log.exception("can't determine which hidden rows of a request remain")
        return False, None

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return 0, because nothing is loaded."""
        return 0, False

    def update_state_after_alloc(
        self, request: Request, blocks: Any, num_external_tokens: int
    ) -> None:
        """Do nothing, because nothing is loaded."""

    # -- worker ------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Store a reference to the tap's memory. If several ranks have the same content, only the
        first one sends it.
        """
        if get_tensor_model_parallel_rank() != 0:
            return
        try:
            self._cache = kv_caches[TAP_LAYER]
            connection = self._address.connect()
            self._sender = RowSender.on(self._cache.device, connection, self._most_bytes)
        except (OSError, AuthenticationError, KeyError) as error:
            raise RuntimeError(f"can't send hidden rows: {error!r}") from error

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Send the remaining rows of requests that have ended, before the forward pass. This
        doesn't block.
        """
        assert isinstance(kv_connector_metadata, RowMetadata)
        self._send(kv_connector_metadata.ended)

    def wait_for_save(self) -> None:
        """Send the rows selected by the scheduler, after the forward pass. This doesn't block."""
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
        """Report the number of bytes that are waiting to be sent to the stage, if it has
        changed.
        """
        waiting = self._sender.waiting_bytes if self._sender is not None else 0
        if waiting == self._told_bytes:
            return None
        self._told_bytes = waiting
        return RowsWaiting(waiting)

    def shutdown(self) -> None:
        """Stop the sender."""
        if self._sender is not None:
            self._sender.close()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Do nothing, because nothing is loaded."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing, because nothing is loaded."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Do nothing, because Python code doesn't run here when a CUDA graph is replayed. The rows
        are sent by `wait_for_save` instead.
        """


def _tap_group(config: KVCacheConfig) -> tuple[int, int]:
    """Return the index and the block size of the cache group that contains the tap."""
    for index, group in enumerate(config.kv_cache_groups):
        if TAP_LAYER in group.layer_names:
            return index, group.kv_cache_spec.block_size
    raise RuntimeError(f"vLLM's cache has no layer {TAP_LAYER}")
