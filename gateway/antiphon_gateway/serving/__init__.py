"""The listening sockets for HTTP and gRPC, including connections, TLS and limits."""
