"""Components that every stage uses: loading, precision, memory, threads and voices."""
