"""The stage runtime, with sessions, engine scheduling, links, and the gRPC server."""
