"""The HTTP server: connections, request bodies, errors and routes."""
