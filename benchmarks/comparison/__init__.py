"""Tools to compare alternatives: interleaved rounds, CPU time of processes, and machine state."""
