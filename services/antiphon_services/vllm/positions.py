"""The rotary positions of recordings in vLLM."""

from __future__ import annotations

from typing import Any


class HeardLikeWords:
    """A mixin for vLLM models in which a recording takes consecutive positions, like text. It must
    precede the model in the list of base classes.

    vLLM's own rule for recordings requires that the prompt continues after each recording and
    crashes the engine if it doesn't. It isn't needed for this kind of model.
    """

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> Any:
        """Return vLLM's positions, treating recordings as text."""
        seen = [each for each in mm_features if each.modality != "audio"]
        stock: Any = super()
        return stock.get_mrope_input_positions(input_tokens, seen)
