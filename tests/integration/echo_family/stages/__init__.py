"""The family's stages."""
