"""Spans of requests. OpenTelemetry is imported only where a deployment names an endpoint."""
