"""How far a request walks through the gateway's code."""
