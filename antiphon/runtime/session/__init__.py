"""The session state machine of a stage. It turns facts into instructions and uses no clocks,
threads or sockets.

A stage turns chunks on its input edges into chunks on its output edges. The following overview
shows the path from an incoming chunk to an outgoing one, and the function that performs each step:

    link or stream   LinkPort, StageServicer           decode a message, call Stage.handle
      ChunkArrived   SessionTable.handle               find the session
                     LiveSession.chunk_arrived         check the tensors, drop duplicates
                     Segment.note_input                restart the stall clock
      Feed           Stage._apply                      submit the command to the engine thread
    ---------------------------------- event loop | engine thread ----------------------------
                     EngineRounds.run                  apply commands, then step once
                     Engine.step                       advance every segment that is not held
      EngineStepped  Handover.put                      wait for the copies to the host, post
    ---------------------------------- engine thread | event loop ----------------------------
                     SessionTable.handle               find the session of each event
      Emitted        LiveSession.emit                  count positions
                     Segment.push                      find the output edge
                     OutputEdge.push                   cut pieces by chunk policy, pace and credit
      Send           LiveSession._send                 number the piece for each destination
                     Stage._apply                      put it on a link or the reply outbox
    link             OutgoingLinks.send_nowait         number, buffer until acknowledged, transmit

The names in the left column are values. The module `facts` defines everything that can happen to a
stage, and `instructions` defines everything that the table can request. `Stage` in `runtime.server`
carries out the instructions and owns all sockets, timers and threads.

Back-pressure works in the opposite direction. When the engine has consumed an input edge,
`LiveSession._grant_inputs` returns a `Grant`. The producer receives it as `Credited`,
`OutputEdge.grant` releases the chunks that were waiting, and a `Limit` allows the engine to
continue. See `credit` for the details.

There are several reasons for this structure:

* The table has no side effects. A recorded list of facts therefore reproduces a fault exactly
  (`antiphon_testkit.recording`), and simulations can try different orders of events without
  threads.
* The engine thread never accesses sessions. It applies `Limit` itself, because the event loop may
  be late and the engine must not exceed its credit.
* Every session ends in `LiveSessions.end`. If there were a second exit, it would be easy to leak a
  slot.

Two details are not elegant. `Stage._apply` contains a loop, because carrying out an instruction can
fail, and the failure is itself a fact that leads to further instructions. Also, `LiveSession` uses
two callbacks (`no_slot` and `leaving`) to ask `LiveSessions` for a slot. This avoids a cycle
between the layers, but the destination of these calls is not visible in `session.py`.
"""
