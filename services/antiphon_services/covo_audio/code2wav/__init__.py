"""The code2wav stage: codes to samples, by flow matching over the whole answer."""
