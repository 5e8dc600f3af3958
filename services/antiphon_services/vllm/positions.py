"""Where what is heard stands in rotary attention."""

from __future__ import annotations

from typing import Any


class HeardLikeWords:
    """Comes before a stock model whose recordings take positions one after the other, as words do.

    So they need no rule of their own; vLLM's has one by which a prompt must go on behind each, and
    ends the engine where one does not.
    """

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> Any:
        """The stock positions, of all but recordings."""
        seen = [each for each in mm_features if each.modality != "audio"]
        stock: Any = super()
        return stock.get_mrope_input_positions(input_tokens, seen)
