"""Mutation testing: random faults in copies of the tree, and the tests that should find them."""
