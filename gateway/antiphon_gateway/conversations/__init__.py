"""Conversations of several turns, independent of the protocol.

`LiveConversation` takes commands (`commands.py`) and emits events (`events.py`). Endpoints
translate both.
"""
