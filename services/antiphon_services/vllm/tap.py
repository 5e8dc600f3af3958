"""The layer that keeps one hidden row of every token in vLLM's paged memory.

It rides on what the attention layers have: block tables, chunked prefill, prefix-cache
hits and preemption hold for its rows as they do for keys and values.
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
    """The stock builder; its write is a scatter into persistent memory, so graphs may hold it.

    The weakest layer decides for the whole model: without this the stock layer's silence
    would switch full CUDA graphs off.
    """

    _cudagraph_support = AttentionCGSupport.ALWAYS


class _Backend(CacheOnlyAttentionBackend):
    @staticmethod
    def get_builder_cls() -> type[_Builder]:
        return _Builder


class TapLayer(CacheOnlyAttentionLayer):
    """Stores rows [tokens, 1, hidden], in the model's dtype also where the cache has another."""

    def __init__(self, hidden: int, cache_config: CacheConfig) -> None:
        super().__init__(
            num_heads=1,
            head_size=hidden,
            cache_config=replace(cache_config, cache_dtype="auto"),
            prefix=TAP_LAYER,
        )

    def get_attn_backend(self) -> type[_Backend]:
        """The stock backend with our builder."""
        return _Backend
