"""Components of every stage: loading, precision, memory, threads and voices."""
