"""The stages that the gateway uses, including discovery, health checks, and the choice of replicas
for sessions.
"""
