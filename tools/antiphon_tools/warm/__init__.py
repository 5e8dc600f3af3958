"""Starts stages within a second, by forking them from a process that has imported their
libraries.
"""
