"""Components of autoregressive stages on torch: decoder, KV cache, sampling and CUDA graphs."""
