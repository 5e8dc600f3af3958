"""The talker stage: text to codec frames."""
