"""What attackers send, and what honest clients see of it."""
