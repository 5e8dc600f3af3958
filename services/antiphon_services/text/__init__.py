"""Text in and out, for any stage: chat templates, detokenising, stop strings."""
