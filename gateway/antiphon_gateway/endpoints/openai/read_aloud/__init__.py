"""The endpoint `/v1/audio/speech`, which reads a text aloud verbatim."""
