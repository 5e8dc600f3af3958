"""Recordings, images, videos and audio on their way between clients and the model."""
