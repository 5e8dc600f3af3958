"""The unit2wav stage, which converts speech units to audio."""
