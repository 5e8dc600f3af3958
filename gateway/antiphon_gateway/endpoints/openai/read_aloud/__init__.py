"""The `/v1/audio/speech` endpoint. It reads text aloud verbatim."""
