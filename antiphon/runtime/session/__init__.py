"""What decides: facts in, instructions out. No clock, no thread, no socket."""
