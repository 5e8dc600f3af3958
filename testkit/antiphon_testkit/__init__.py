"""Public test kit: tiny checkpoints, the Hugging Face reference, fakes and drivers.

Of a checkout; not in the package that the client is installed from.
"""
