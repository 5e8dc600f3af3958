"""What clients talk to: every endpoint reads an order and writes an answer, and shares the rest."""
