"""`/v1/audio/transcriptions`: what a recording says, as a model that answers hears it."""
