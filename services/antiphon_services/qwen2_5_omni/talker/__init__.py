"""The talker stage, which turns the thinker's rows into codes. Each step generates one code."""
