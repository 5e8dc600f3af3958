"""Measures the CPU time of Silero's network for the audio of events.

`python -m benchmarks.realtime.inference CONVERSATIONS EVENTS EVENT_MS` prints the CPU time per 1000
events in milliseconds, if the events of all conversations arrive at the same time.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from antiphon_gateway.voice_activity.network import (
    FRAME_SAMPLES,
    RATE_HZ,
    SEEN_SAMPLES,
    no_memory,
    voice_network,
)


def measure(conversations: int, events: int, event_ms: int) -> float:
    """Return the CPU time per 1000 events in milliseconds."""
    network, sound = voice_network(), np.random.default_rng(0)
    # The number of frames that an event completes alternates between two values, which is correct
    # for 80 ms.
    least, rest = divmod(event_ms * RATE_HZ // 1000, FRAME_SAMPLES)
    sounds = [
        sound.normal(0, 0.03, (least + (rest > 0 and n % 2), SEEN_SAMPLES)).astype(np.float32)
        for n in range(conversations)
    ]
    memories = [no_memory() for _ in sounds]
    network.hear(sounds, memories)
    rounds = events // conversations
    before = time.process_time()
    for _ in range(rounds):
        _, memories = network.hear(sounds, memories)
    return (time.process_time() - before) * 1e6 / (rounds * conversations)


if __name__ == "__main__":
    print(measure(*map(int, sys.argv[1:])))
