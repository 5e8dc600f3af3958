"""A model family as another distribution has it: one stage, which says what it was told."""
