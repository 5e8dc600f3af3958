"""Time to first audio and throughput of the whole pipeline."""
