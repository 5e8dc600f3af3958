"""The stages that the gateway uses: discovery, health checks, and the choice of replicas for
sessions.
"""
