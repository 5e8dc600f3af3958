"""The talker stage, which converts the hidden rows of the prompt and the IDs of the reply to codec
frames.
"""
