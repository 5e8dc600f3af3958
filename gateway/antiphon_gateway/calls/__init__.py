"""Sessions and segments on the stages, independent of the client's protocol."""
