"""The stages of the family easel."""
