"""What serves a stage: its process, its ports, and the shell around the session table."""
