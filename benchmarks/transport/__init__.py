"""Message latency and cost between two processes: `python -m benchmarks.transport --help`."""
