"""How benchmarks compare: interleaved rounds, CPU time of processes, the state of the machine."""
