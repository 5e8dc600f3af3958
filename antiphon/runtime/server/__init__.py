"""The server of a stage. It contains the process, its ports, and the code that connects the session
table to them.
"""
