"""Plain values that stages, gateway and client exchange. These modules perform no I/O."""
