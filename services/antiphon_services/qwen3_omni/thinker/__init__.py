"""The thinker stage, which turns a conversation into text, hidden rows of the prompt, and IDs to be
spoken.
"""
