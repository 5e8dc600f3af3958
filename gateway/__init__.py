"""The gateway: HTTP and gRPC in front of the stages. No torch, no model code."""
