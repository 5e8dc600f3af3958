"""The wire form: tensor blobs, proto conversion, gRPC status."""
