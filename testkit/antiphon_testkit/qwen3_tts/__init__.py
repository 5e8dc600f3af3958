"""The test kit for Qwen3-TTS, with tiny checkpoints and the output of the vendor's package for
them.
"""
