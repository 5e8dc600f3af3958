"""What a realtime conversation costs the gateway."""
