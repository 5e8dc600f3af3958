"""Conversations over gRPC (`SpeechService.Converse`)."""
