"""Listeners of HTTP and gRPC: connections, TLS, bounds."""
