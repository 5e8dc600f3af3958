"""Discovery of the replicas of each stage and of their addresses."""
