"""The talker stage: text in, codec frames out."""
