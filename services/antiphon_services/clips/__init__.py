"""Reference recordings: features and networks with which voice-cloning models encode them."""
