"""Trace spans of requests. OpenTelemetry is only imported if a deployment configures an
endpoint.
"""
