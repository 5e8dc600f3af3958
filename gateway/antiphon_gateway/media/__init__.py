"""Converts recordings, images, videos and audio between clients and the model."""
