"""The code2wav stage: codec frames in, samples out."""
