"""Conversations of several turns, whatever the protocol.

`LiveConversation` takes commands (`commands.py`) and tells events (`events.py`). Endpoints
translate.
"""
