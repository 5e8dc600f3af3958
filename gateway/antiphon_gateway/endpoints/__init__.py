"""The endpoints for clients. Every endpoint reads an order and writes an answer, and all of them
share the remaining steps.
"""
