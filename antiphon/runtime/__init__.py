"""The stage runtime: sessions, scheduling of the engine, links, the gRPC server."""
