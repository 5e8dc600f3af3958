"""The endpoint `/v1/realtime`, which implements OpenAI's realtime API (GA) over a WebSocket."""
