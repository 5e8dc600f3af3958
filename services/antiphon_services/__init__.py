"""The stages of all families. There is a folder for each family, which contains a folder for each
stage, and there are packages that all of them use.
"""
