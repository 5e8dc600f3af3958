"""Measures time to first audio and throughput of the complete pipeline."""
