"""The talker stage, which generates audio latents from text."""
