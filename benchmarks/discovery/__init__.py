"""What an event of EndpointSlices costs the gateway."""
