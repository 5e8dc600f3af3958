"""Sessions on the stages and their segments, free of any protocol that clients speak."""
