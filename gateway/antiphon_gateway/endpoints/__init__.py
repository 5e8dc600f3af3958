"""The endpoints for clients. Each endpoint parses requests into orders and formats the answers.
Everything in between is shared.
"""
