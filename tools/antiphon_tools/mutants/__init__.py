"""Mutation testing: makes random changes to a copy of the tree and runs the tests to see whether
they fail.
"""
