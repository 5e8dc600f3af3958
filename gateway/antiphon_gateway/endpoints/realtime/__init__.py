"""The `/v1/realtime` endpoint. It implements OpenAI's realtime API (GA) over a WebSocket."""
