"""Orders and the prepared requests that are created from them."""
