"""Listening sockets for HTTP and gRPC, with connections, TLS and limits."""
