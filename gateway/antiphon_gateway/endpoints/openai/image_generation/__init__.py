"""`/v1/images/generations`: images for a prompt."""
