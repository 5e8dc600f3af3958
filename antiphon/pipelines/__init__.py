"""Model families, with one file for each. Knowledge that several stages of a model share is kept
only here.
"""
