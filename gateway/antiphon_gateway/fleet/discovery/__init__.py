"""Which replicas of each stage there are, and where."""
