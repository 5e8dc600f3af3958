"""What a collective needs is loaded beside the event loop: it takes seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Says on which thread torch is first looked for.
PROGRAM = """
import asyncio, importlib.abc, sys, threading
from antiphon.transport.payload.registry import attach_best, make_senders
from antiphon.transport.settings import LinkSettings
from antiphon.v1 import stage_pb2

class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch" and not seen:
            seen.append(threading.current_thread() is threading.main_thread())

async def main():
    settings = LinkSettings("nccl", "cpu", slab_bytes=1 << 20, resume_window_s=1.0)
    if sys.argv[1] == "producer":
        for sender in (await make_senders(settings, "127.0.0.1:9", None))[0]:
            sender.close()
    else:
        offer = stage_pb2.TransportOffer(transport="gloo", descriptor=b"127.0.0.1:nowhere")
        try:
            await attach_best([offer], settings)
        except Exception as error:
            print(error, file=sys.stderr)

seen = []
assert "torch" not in sys.modules
sys.meta_path.insert(0, Watch())
asyncio.run(main())
print(seen)
"""


@pytest.mark.parametrize("end", ["producer", "consumer"])
def test_torch_is_not_imported_on_the_event_loop(end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, end], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[False]", done.stderr
