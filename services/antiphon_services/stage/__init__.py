"""Components that every stage uses for loading, precision, memory, threads and voices."""
