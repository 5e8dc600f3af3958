"""The thinker stage, which generates text, speech units or image tokens."""
