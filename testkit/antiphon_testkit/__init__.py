"""The public test kit, which contains tiny checkpoints, Hugging Face references, fakes and drivers.

It is only available in a checkout, and is not part of the package that installs the client.
"""
