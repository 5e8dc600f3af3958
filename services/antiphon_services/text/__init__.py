"""Text processing for stages: chat templates, detokenization, stop strings and function calls."""
