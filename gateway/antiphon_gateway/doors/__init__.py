"""What clients talk to: every door reads an order and writes an answer, and shares the rest."""
