"""The thinker's rows to codes, one a step."""
