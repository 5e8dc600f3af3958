"""Reference recordings: the features and networks that voice-cloning models use to encode them."""
