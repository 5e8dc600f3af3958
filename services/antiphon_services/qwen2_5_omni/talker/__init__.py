"""The talker stage, which converts the rows of the thinker to codes, one code per step."""
