"""A stage's server: its process, its ports and the shell around the session table."""
