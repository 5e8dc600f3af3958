"""Links between stage processes."""
