"""A simulation of the protocol between the gateway and the stages, without sockets or a clock.

Events can occur in any order. The stages use the real session tables and engine rounds, with
engines that only count. The gateway uses the real `SegmentProgress` and `DeliveredOutput` in a
simple loop. Sessions are lines of a standing stream, whose ends are the real `StandingLines`,
`LineTable` and `ServedSession`. They are connected by queues. A seed determines the next message,
the next step, and the faults.
"""
