"""What stages, gateway and client exchange, as plain values. They wait for nothing."""
