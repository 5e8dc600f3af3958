"""Payload transports. Each transport consists of one file in this package and one row in
`registry.py`.
"""
