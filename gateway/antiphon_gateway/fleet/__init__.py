"""The stages behind the gateway: which there are, whether they serve, who answers a request."""
