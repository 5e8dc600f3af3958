"""The endpoint `/v1/audio/speech`, which reads text aloud verbatim."""
