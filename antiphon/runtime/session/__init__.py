"""The session state machine of a stage: facts in, instructions out. No clock, thread or socket.

A stage turns chunks of its input edges into chunks of its output edges. This is the loop, from an
incoming chunk to an outgoing one, with the function that does each step:

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

Names in the left column are values. `facts` lists everything that can happen to a stage.
`instructions` lists everything that the table can request. `Stage` in `runtime.server` carries
instructions out and owns every socket, timer and thread.

Back-pressure runs against this flow. When the engine has consumed an input edge,
`LiveSession._grant_inputs` returns a `Grant`. The producer receives it as `Credited`,
`OutputEdge.grant` releases the chunks that waited, and a `Limit` lets the engine continue. See
`credit`.

Why it is split this way:

* The table is pure, so a recorded list of facts reproduces a production fault exactly
  (`antiphon_testkit.recording`), and simulations explore orders of events without threads.
* The engine thread never touches sessions. It applies `Limit` itself, because the event loop may
  be late and the engine must not run past its credit.
* Every session ends in `LiveSessions.end`. A second exit would eventually leak a slot.

What is not pretty: `Stage._apply` loops, because carrying out an instruction can fail, and the
failure is itself a fact with further instructions. `LiveSession` asks `LiveSessions` for a slot
through two callbacks (`no_slot`, `leaving`). That keeps the layers acyclic, but hides the call from
a reader of `session.py`.
"""
