"""The talker stage, which generates frames of latents for the thinker's text."""
