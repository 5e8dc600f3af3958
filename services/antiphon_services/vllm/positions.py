"""The rotary positions of recordings in vLLM."""

from __future__ import annotations

from typing import Any


class HeardLikeWords:
    """A mixin for a model of vLLM in which recordings take consecutive positions, like text. It
    must precede the model in the list of base classes.

    Such recordings need no rule of their own. vLLM's rule requires that the prompt continues after
    each recording, and the engine ends if it does not.
    """

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> Any:
        """Return vLLM's positions, with recordings treated as text."""
        seen = [each for each in mm_features if each.modality != "audio"]
        stock: Any = super()
        return stock.get_mrope_input_positions(input_tokens, seen)
