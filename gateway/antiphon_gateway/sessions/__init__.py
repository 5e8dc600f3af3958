"""Sessions on the stages and the events of their segments."""
