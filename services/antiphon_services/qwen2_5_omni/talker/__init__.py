"""The talker stage, which turns the thinker's rows into codes, one code per step."""
