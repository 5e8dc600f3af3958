"""Plain values that are exchanged between stages, gateway and client. The modules in this package
perform no I/O.
"""
