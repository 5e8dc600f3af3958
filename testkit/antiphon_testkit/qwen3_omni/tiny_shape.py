"""Sizes of a tiny Qwen3-Omni checkpoint. There are two sets of sizes that have almost no value in
common.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.errors import InvalidArgument
from antiphon_testkit.tiny_shape import TinyMultimodalSizes

# Of the last 1024 IDs in the talker's vocabulary, Hugging Face only ever draws eos.
CODEC_SPECIALS = 1024


@dataclass(frozen=True, slots=True)
class TinyShape(TinyMultimodalSizes):
    """The sizes of a tiny checkpoint. Their names are based on the parts of the model.

    `talker_hidden` is the hidden size of both the talker and the code predictor, because Hugging
    Face adds their embeddings. In `accept_layer`, 0 is the embedding. With `endless_text`, the
    thinker never draws its end ID, and with `endless_speech`, the talker never does, so they
    continue up to the requested limit. If `speaks` is false, the checkpoint only has a thinker.
    """

    layers: int = 3
    heads: int = 6
    head_dim: int = 16
    experts: int = 8
    experts_per_token: int = 2
    expert_intermediate: int = 32
    accept_layer: int = 2
    talker_hidden: int = 48
    talker_layers: int = 2
    talker_heads: int = 4
    talker_kv_heads: int = 2
    talker_head_dim: int = 16
    talker_experts: int = 6
    talker_experts_per_token: int = 2
    talker_expert_intermediate: int = 24
    talker_norm_topk: bool = True
    code_groups: int = 4
    codebook_size: int = 64
    predictor_layers: int = 2
    predictor_heads: int = 4
    predictor_kv_heads: int = 2
    predictor_head_dim: int = 16
    decoder_hidden: int = 32
    decoder_layers: int = 2
    decoder_heads: int = 2
    decoder_kv_heads: int = 2
    decoder_window: int = 72
    decoder_dim: int = 64
    raw_bytes: bool = False
    endless_text: bool = False
    speaks: bool = True
    endless_speech: bool = False

    def check(self) -> None:
        """Raise `InvalidArgument` if the sizes are not compatible."""
        TinyMultimodalSizes.check(self)
        for prefix in ("talker_", "predictor_", "decoder_"):
            self.check_divides(f"{prefix}kv_heads", f"{prefix}heads")
        self.check_divides("decoder_heads", "decoder_hidden", even=True)
        for name in ("head_dim", "talker_head_dim", "predictor_head_dim"):
            if getattr(self, name) % 2 or getattr(self, name) < 8:
                raise InvalidArgument(f"{name}: must be even and at least 8", field=name)
        for part in ("", "talker_"):
            top_k = f"{part}experts_per_token"
            if getattr(self, top_k) >= getattr(self, f"{part}experts"):
                raise InvalidArgument(f"{top_k}: must be below {part}experts", field=top_k)
        if self.accept_layer >= self.layers:
            raise InvalidArgument("accept_layer: must be below layers", field="accept_layer")
        if self.decoder_dim % 16:
            raise InvalidArgument("decoder_dim: must be a multiple of 16", field="decoder_dim")
        if self.code_groups < 2:
            raise InvalidArgument("code_groups: must be at least 2", field="code_groups")

    @property
    def talker_vocabulary(self) -> int:
        """The size of the talker's vocabulary, in which the codes precede the special IDs."""
        return self.codebook_size + CODEC_SPECIALS


SMALL = TinyShape()
OTHER = TinyShape(
    hidden=96,
    layers=4,
    heads=4,
    kv_heads=1,
    head_dim=32,
    experts=6,
    experts_per_token=3,
    expert_intermediate=40,
    accept_layer=1,
    audio_hidden=48,
    audio_layers=1,
    audio_heads=3,
    talker_hidden=64,
    talker_layers=3,
    talker_heads=6,
    talker_kv_heads=3,
    talker_head_dim=24,
    talker_experts=8,
    talker_experts_per_token=3,
    talker_expert_intermediate=16,
    talker_norm_topk=False,
    code_groups=8,
    codebook_size=96,
    predictor_layers=1,
    predictor_heads=3,
    predictor_kv_heads=1,
    predictor_head_dim=24,
    decoder_hidden=48,
    decoder_layers=3,
    decoder_heads=4,
    decoder_window=9,
    decoder_dim=48,
    raw_bytes=True,
)
