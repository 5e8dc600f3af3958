"""The gRPC service `Speech`."""
