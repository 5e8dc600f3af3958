"""The configuration of Qwen2's layers. Fields and defaults are the same as in transformers."""

# Don't postpone the evaluation of annotations, because `ConfigObject` uses them for validation.

from typing import Any

from antiphon_services.stage.config_object import ConfigObject


class Qwen2Config(ConfigObject):
    """The section of `config.json` that describes layers of Qwen2."""

    vocab_size: int = 151936
    hidden_size: int = 4096
    intermediate_size: int = 22016
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = 32
    hidden_act: str = "silu"
    max_position_embeddings: int = 32768
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    use_cache: bool = True
    tie_word_embeddings: bool = False
    rope_parameters: dict[str, Any] | None = None
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    attention_dropout: float | int = 0.0
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **others: Any) -> None:
        if not self.use_sliding_window:
            self.sliding_window = None
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.layer_types is None:
            windows = self.sliding_window is not None
            self.layer_types = [
                "sliding_attention"
                if windows and index >= self.max_window_layers
                else "full_attention"
                for index in range(self.num_hidden_layers)
            ]
        super().__post_init__(**others)
