"""The stages upstream of the gateway: discovery, health, and the choice of replicas for
requests."""
