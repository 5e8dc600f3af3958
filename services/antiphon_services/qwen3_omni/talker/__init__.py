"""The talker stage: hidden rows of the prompt and reply ids to codec frames."""
