"""The protocol between gateway and stages, simulated: no sockets, no clock, every order of things.

Stages are their real session tables and engine rounds over engines that count; the gateway is its
real `SegmentProgress` and `DeliveredOutput` under a simple loop. What lies between them are queues,
of which a seed draws the next message to arrive, the next step, and what fails.
"""
