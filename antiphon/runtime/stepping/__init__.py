"""What steps an engine: its thread, its rounds, and what waits for them."""
