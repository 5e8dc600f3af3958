"""Wire formats: tensor blobs, proto conversion and gRPC status."""
