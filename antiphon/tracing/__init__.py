"""Trace spans of requests. OpenTelemetry is imported only if a deployment configures an
endpoint."""
