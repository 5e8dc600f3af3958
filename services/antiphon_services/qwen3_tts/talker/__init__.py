"""The talker stage, which converts text to codec frames."""
