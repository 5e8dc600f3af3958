"""`SpeechService.Converse`: conversations over gRPC."""
