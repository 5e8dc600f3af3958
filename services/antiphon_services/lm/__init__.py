"""What every autoregressive stage on torch is made of: decoder, KV cache, sampling, graphs."""
