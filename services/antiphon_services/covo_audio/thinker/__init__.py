"""The thinker stage: recordings and text to one stream of text ids and codes."""
