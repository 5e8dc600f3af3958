"""`/v1/realtime`: OpenAI's realtime API (GA) over a WebSocket."""
