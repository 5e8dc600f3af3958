"""Orders, and the requests that are prepared from them."""
