"""The runtime of a stage: its sessions, the scheduling of its engine, its links, and its gRPC
server.
"""
