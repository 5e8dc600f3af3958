"""The runtime of a stage. It comprises sessions, the scheduling of the engine, links and the gRPC
server.
"""
