"""The layer that stores one hidden row per token in vLLM's paged memory.

It relies on the same mechanisms as attention layers, so that block tables, chunked prefill, prefix
cache hits and preemption work for its rows in the same way as for keys and values.
"""

from __future__ import annotations

from dataclasses import replace

from vllm.config import CacheConfig
from vllm.model_executor.models.extract_hidden_states import (
    CacheOnlyAttentionBackend,
    CacheOnlyAttentionLayer,
    CacheOnlyAttentionMetadataBuilder,
)
from vllm.v1.attention.backend import AttentionCGSupport

from antiphon_services.vllm.spans import TAP_LAYER


class _Builder(CacheOnlyAttentionMetadataBuilder):
    """vLLM's builder, declared as compatible with CUDA graphs. This is correct because the tap only
    scatters rows into fixed memory.

    The least capable layer determines what the whole model can do. vLLM's layer doesn't declare
    anything, which would disable full CUDA graphs.
    """

    _cudagraph_support = AttentionCGSupport.ALWAYS


class _Backend(CacheOnlyAttentionBackend):
    @staticmethod
    def get_builder_cls() -> type[_Builder]:
        return _Builder


class TapLayer(CacheOnlyAttentionLayer):
    """Stores rows [tokens, 1, hidden] in the model's dtype, even if the cache uses a different
    one.
    """

    def __init__(self, hidden: int, cache_config: CacheConfig) -> None:
        super().__init__(
            num_heads=1,
            head_size=hidden,
            cache_config=replace(cache_config, cache_dtype="auto"),
            prefix=TAP_LAYER,
        )

    def get_attn_backend(self) -> type[_Backend]:
        """Return vLLM's backend, with antiphon's builder."""
        return _Backend
