"""A simulation of the protocol between the gateway and the stages, without sockets or a real clock.

Events can occur in any order. The stages use the real session tables and engine rounds, but their
engines only count. The gateway uses the real `SegmentProgress` and `DeliveredOutput` in a simple
loop. Sessions are lines on a standing stream. Its ends are the real `StandingLines`, `LineTable`
and `ServedSession`, connected by queues. The stream and the ring of a link are read and written by
the real `IncomingCarriers` and `OutgoingCarriers`. Everything that can vary (the next message, the
next step and the faults) is determined by a seed.
"""
