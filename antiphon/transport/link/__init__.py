"""Links between stage processes. There is a package for the producer's end and one for the
consumer's end, with parallel modules.
"""
