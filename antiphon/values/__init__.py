"""Plain values exchanged by stages, gateway and client. No I/O."""
