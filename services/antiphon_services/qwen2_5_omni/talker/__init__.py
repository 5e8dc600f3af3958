"""The talker stage: the thinker's rows to codes, one code per step."""
