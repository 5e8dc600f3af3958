"""Model families. Each family is declared in a separate module.

Everything that several stages of a model must agree on is defined here and nowhere else.
"""
