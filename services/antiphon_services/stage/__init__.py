"""What every stage needs, whatever its family: loading, precision, memory, threads, voices."""
