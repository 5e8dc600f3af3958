"""Mutation testing: makes random changes in copies of the tree, and runs the tests."""
