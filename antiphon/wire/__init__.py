"""Wire formats, including tensor blobs, proto conversion and gRPC status."""
