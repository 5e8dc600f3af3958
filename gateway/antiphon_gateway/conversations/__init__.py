"""Conversations with several turns, independent of the client's protocol.

`LiveConversation` accepts commands (`commands.py`) and emits events (`events.py`). Endpoints
convert both to and from their protocols.
"""
