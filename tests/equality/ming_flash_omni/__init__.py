"""The thinker of Ming-flash-omni, compared with the vendor's code."""
