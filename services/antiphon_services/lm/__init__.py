"""The torch components used by autoregressive stages: the decoder, the KV cache, sampling and CUDA
graphs.
"""
