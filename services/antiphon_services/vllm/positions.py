"""Rotary positions of recordings in vLLM."""

from __future__ import annotations

from typing import Any


class HeardLikeWords:
    """Mixin before a stock model whose recordings take consecutive positions, like text.

    They need no rule of their own. vLLM's rule requires that the prompt continues after each
    recording, and ends the engine otherwise.
    """

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> Any:
        """Return the stock positions, treating recordings as text."""
        seen = [each for each in mm_features if each.modality != "audio"]
        stock: Any = super()
        return stock.get_mrope_input_positions(input_tokens, seen)
