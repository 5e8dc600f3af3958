"""The stage runtime. It contains sessions, engine scheduling, links, and the gRPC server."""
