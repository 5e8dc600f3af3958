"""The thinker stage: a conversation to text, hidden rows of the prompt, and ids to speak."""
