"""`/v1/audio/speech`: a text, spoken as it is."""
