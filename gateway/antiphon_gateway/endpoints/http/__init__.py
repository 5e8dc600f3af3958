"""The HTTP server, which comprises connections, bodies, errors and routes."""
