"""What a gateway does with more than it can answer."""
