"""Two ranks of a group, of which one stalls between its address and its connection.

A program of its own: what it looks for ends a process. It prints how often the other rank gave up.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed

from antiphon.transport.payload import process_group
from antiphon.transport.payload.process_group import CONSUMER, PRODUCER, Group

HOST = "127.0.0.1"
ATTEMPTS = 8


class StallingStore(torch.distributed.Store):  # type: ignore[misc]
    """A store whose owner, once it knows the other rank's address, stops until it is let go."""

    def __init__(self, store: torch.distributed.Store) -> None:
        super().__init__()
        self._store = store
        self.stalled, self.released = threading.Event(), threading.Event()

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def wait(self, keys: Sequence[str], timeout: timedelta = timedelta(seconds=60)) -> None:
        self._store.wait(list(keys), timeout)
        if not keys[0].startswith("here/"):
            self.stalled.set()
            self.released.wait()

    def has_extended_api(self) -> bool:
        return False


def attempt(late: int, kept: list[RuntimeError]) -> None:
    """One group; the rank `late` stalls. Errors are kept, as a task keeps them."""
    served = torch.distributed.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    stores = [served, torch.distributed.TCPStore(HOST, served.port, is_master=False)]
    stalling = StallingStore(stores[late])
    stores[late] = stalling
    groups = [Group(stores[rank], rank, "cpu", HOST) for rank in (PRODUCER, CONSUMER)]

    def transfer(rank: int) -> None:
        act = (groups[rank].send, groups[rank].receive)[rank]
        try:
            act(torch.zeros(64, dtype=torch.uint8))
        except RuntimeError as error:
            kept.append(error)

    threads = [threading.Thread(target=transfer, args=(rank,)) for rank in (late, 1 - late)]
    for thread in threads:
        thread.start()
    stalling.stalled.wait()
    threads[1].join()
    stalling.released.set()
    threads[0].join()
    for group in groups:
        group.close()


def main() -> None:
    """Which of the two connects is up to chance, so it takes several attempts."""
    process_group.TIMEOUT = timedelta(seconds=1)
    kept: list[RuntimeError] = []
    for number in range(ATTEMPTS):
        attempt(number % 2, kept)
    joining = [each for each in threading.enumerate() if each.name == "collective join"]
    for thread in joining:
        thread.join()
    print(len(kept))


if __name__ == "__main__":
    main()
