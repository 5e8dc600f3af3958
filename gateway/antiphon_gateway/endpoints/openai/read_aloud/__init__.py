"""`/v1/audio/speech`, which speaks a text verbatim."""
