"""The `/v1/images/generations` endpoint. It generates images from a prompt."""
