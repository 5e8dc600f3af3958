"""The talker stage: prompt rows and reply ids in, codec frames out."""
