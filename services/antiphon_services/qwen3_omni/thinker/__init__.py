"""The thinker stage, which converts a conversation to text, to hidden rows of the prompt, and to
IDs to be spoken.
"""
