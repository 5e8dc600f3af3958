"""What picking replicas costs the gateway."""
