"""The server of a stage: its process, its ports, and everything that surrounds the session
table.
"""
