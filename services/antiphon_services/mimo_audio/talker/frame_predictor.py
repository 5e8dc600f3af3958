"""Draws the codes of a group of frames from the language model's last state.

The codes of channel c are delayed by `delays[c]`: step t draws channel c of frame t - delays[c]. So
a group takes as many steps as it has frames, and the longest delay more. A step's input is the sum
of the embeddings of what the step before drew; the first one's is the projected last state. Groups
know nothing of each other but what the language model's state says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, scaled_dot_product_attention

from antiphon_services.lm.decoder import Decoder
from antiphon_services.lm.sampler import SamplingRows, choose_each


class DelayedFramePredictor:
    """Frames of `group` at a time, for any number of sessions.

    `module` is a `SpeechTextModule`. Channel c never draws `empty_codes[c]`.
    """

    def __init__(
        self, module: Any, *, group: int, delays: Sequence[int], empty_codes: Sequence[int]
    ) -> None:
        self._enter: Tensor = module.hidden_states_downcast.weight
        self._heads = tuple(each.weight for each in module.local_transformer_lm_heads)
        self._tables = tuple(each.weight for each in module.speech_embeddings)
        project = getattr(module, "speech_embeddings_to_local", None)
        self._project: Tensor | None = None if project is None else project.weight
        self.group, self._delays = group, tuple(delays)
        self.steps = group + max(delays)
        self._decoder = Decoder(
            module.local_transformer, self.steps, batch_invariant=False, exact_norms=False
        )
        self._suppressed = tuple(
            torch.arange(len(head), device=head.device) == empty
            for head, empty in zip(self._heads, empty_codes, strict=True)
        )

    @property
    def channels(self) -> int:
        """Codes of a frame."""
        return len(self._heads)

    def draw(
        self, states: Tensor, settings: SamplingRows, numbers: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Codes int64 [n, group, channels], and decided bool [n].

        `states` [n, hidden] are the language model's, after its final norm. `numbers` float64
        [n, group, channels] are in [0, 1). `decided` is False where logits left nothing to choose.
        """
        count = len(states)
        shape = self._decoder.shape
        heads = 2 * shape.key_heads
        size = (shape.layers, count, self.steps, heads, shape.head_dim)
        memory = torch.empty(size, dtype=states.dtype, device=states.device)
        codes = torch.zeros(
            count, self.group, self.channels, dtype=torch.int64, device=states.device
        )
        decided = torch.ones(count, dtype=torch.bool, device=states.device)
        rows = linear(states, self._enter)
        for step in range(self.steps):

            def attend(layer: int, queries: Tensor, new: Tensor, step: int = step) -> Tensor:
                memory[layer, :, step] = new
                return self._attended(queries, memory[layer, :, : step + 1])

            at = torch.full((count,), step, device=states.device)
            out = self._decoder.forward(rows, self._decoder.rotation.at(at), attend)
            rows = torch.zeros_like(rows)
            for channel, delay in enumerate(self._delays):
                frame = step - delay
                if not 0 <= frame < self.group:
                    continue
                drawn, likeliest = choose_each(
                    linear(out, self._heads[channel]),
                    settings,
                    numbers[:, frame, channel, None],
                    suppressed=self._suppressed[channel],
                )
                codes[:, frame, channel] = drawn
                decided &= likeliest.isfinite()
                entering = embedding(drawn, self._tables[channel])
                if self._project is not None:
                    entering = linear(entering, self._project)
                rows += entering
        return codes, decided

    def _attended(self, queries: Tensor, keys_values: Tensor) -> Tensor:
        """[n, heads, head_dim]: attention of one row of each session to all of its rows."""
        keys, values = keys_values.transpose(1, 2).chunk(2, dim=1)
        mixed = scaled_dot_product_attention(
            queries.unsqueeze(2), keys, values, scale=self._decoder.shape.scale
        )
        return mixed.squeeze(2)
