"""The token2image stage, which converts image tokens to images."""
