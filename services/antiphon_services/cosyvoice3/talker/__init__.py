"""The talker stage: text to speech codes."""
