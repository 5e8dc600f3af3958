"""The configuration of Bailing MoE V2, which is the language model of Ming-flash-omni."""

# Don't postpone the evaluation of annotations, because `ConfigObject` uses them for validation.

from typing import Any

from antiphon_services.stage.config_object import ConfigObject

ROTATED = 64
"""The number of dimensions in a head that are rotated."""
SPATIAL = 24
"""The number of frequencies that belong to the height and the width. Like `ROTATED`, this is a
constant in the vendor's code.
"""


class BailingConfig(ConfigObject):
    """The object `llm_config`. The fields and defaults are those of the vendor's code."""

    vocab_size: int = 30592
    hidden_size: int = 1024
    intermediate_size: int | None = None
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    num_key_value_heads: int = 0
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 16384
    rms_norm_eps: float = 1e-5
    rope_theta: float | int = 10000.0
    rope_scaling: dict[str, Any] | None = None
    partial_rotary_factor: float = 0.5
    num_experts: int = 16
    num_shared_experts: int = 0
    num_experts_per_tok: int = 2
    n_group: int = 8
    topk_group: int = 4
    routed_scaling_factor: float = 2.5
    moe_intermediate_size: int | None = None
    first_k_dense_replace: int = 0
    image_patch_token: int = -1

    def __post_init__(self, **others: Any) -> None:
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        super().__post_init__(**others)

    def validate_rotation(self) -> None:
        """Raise `ValueError` if the rotary embedding has a single axis, or if the vendor's division
        of its dimensions doesn't fit.
        """
        if not self.rope_scaling:
            raise ValueError("rope_scaling is missing; the model has the type video_rope")
        rotated = int(self.head_dim * self.partial_rotary_factor) if self.head_dim else 0
        if rotated != ROTATED:
            raise ValueError(
                f"head_dim {self.head_dim} and partial_rotary_factor {self.partial_rotary_factor} "
                f"make {rotated} rotated dimensions; the model has {ROTATED}"
            )

    def validate_experts(self) -> None:
        """Raise `ValueError` if experts can't be divided into groups."""
        if self.num_experts % self.n_group or self.num_experts < 2 * self.n_group:
            raise ValueError(f"num_experts {self.num_experts} don't fit n_group {self.n_group}")
        if self.moe_intermediate_size is None or self.intermediate_size is None:
            raise ValueError("intermediate_size and moe_intermediate_size are required")
