"""`/v1/audio/transcriptions`: transcribe a recording with a model that answers audio."""
