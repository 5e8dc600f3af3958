"""Model families. Each family is declared in its own module.

Anything that several stages of a model must agree on is defined here and nowhere else.
"""
