"""Components of autoregressive stages that use torch: decoder, KV cache, sampling and CUDA
graphs.
"""
