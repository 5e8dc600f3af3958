"""The HTTP server, including connections, request bodies, errors and routes."""
