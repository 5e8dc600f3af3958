"""Reference recordings: the features and the networks that voice-cloning models hear them with."""
