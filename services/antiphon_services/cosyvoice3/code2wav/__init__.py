"""The code2wav stage: a flow computes mel frames from codes, and a vocoder the samples."""
