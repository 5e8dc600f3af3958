"""Conversations of several turns, whatever the protocol: items, and the session that answers."""
