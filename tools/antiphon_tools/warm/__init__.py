"""Starts stages within a second, by forking them from a process that has already imported their
libraries.
"""
