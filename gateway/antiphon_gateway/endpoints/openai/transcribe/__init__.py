"""The endpoint `/v1/audio/transcriptions`, which transcribes a recording with a model that accepts
audio.
"""
