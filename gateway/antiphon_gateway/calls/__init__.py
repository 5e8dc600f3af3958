"""Sessions on the stages and their segments, independent of the client's protocol."""
