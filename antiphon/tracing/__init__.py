"""Traces requests. OpenTelemetry is imported only if the deployment configures an endpoint."""
