"""The `/v1/audio/transcriptions` endpoint. It transcribes a recording with a model that accepts
audio.
"""
