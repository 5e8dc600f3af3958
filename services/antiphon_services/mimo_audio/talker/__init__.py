"""The talker stage, which generates text and codes from text and speech."""
