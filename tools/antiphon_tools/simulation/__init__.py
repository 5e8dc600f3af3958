"""A simulation of the protocol between gateway and stages, in any order of events, without sockets
or a clock.

Stages have the real session tables and engine rounds, over engines that count. The gateway has the
real `SegmentProgress` and `DeliveredOutput`, in a simple loop. Sessions are lines of a standing
stream, with the real `StandingLines`, `LineTable` and `ServedSession` at its ends. Queues connect
them. A seed determines the next message, the next step, and the faults.
"""
