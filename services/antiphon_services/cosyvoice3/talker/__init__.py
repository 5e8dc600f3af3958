"""The talker stage, which generates speech codes from text."""
