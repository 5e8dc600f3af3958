"""The endpoint `/v1/images/generations`, which generates images from a prompt."""
