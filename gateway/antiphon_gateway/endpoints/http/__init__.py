"""The HTTP server: connections, bodies, errors, routes."""
