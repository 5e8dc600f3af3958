"""What one runs from a checkout: launcher, demo, load tests, speaking checkpoint."""
