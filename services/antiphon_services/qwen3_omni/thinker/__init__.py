"""The thinker stage: a conversation in; text, prompt rows and ids to be spoken out."""
