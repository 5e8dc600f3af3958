"""The endpoints for clients. Each endpoint parses requests into orders and formats the answers. All
other steps are shared.
"""
