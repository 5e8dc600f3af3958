"""The code2wav stage: codec frames to audio samples."""
