"""The code2wav stage, which converts codec frames to audio samples."""
