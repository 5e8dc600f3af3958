"""Sessions on the stages and their segments, independent of the protocol of the client."""
