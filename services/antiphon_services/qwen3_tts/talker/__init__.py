"""The talker stage, which turns text into codec frames."""
