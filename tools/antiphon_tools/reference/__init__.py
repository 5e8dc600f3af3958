"""Reference pages: of the SDK, and of the protos with their comments."""
