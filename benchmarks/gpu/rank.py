"""One of two ranks of a process group: `python -m benchmarks.gpu.rank RANK PORT ...`.

Both ranks use the same device. The first rank prints how long it takes to send bytes and receive
the same number of bytes, as a JSON object for all sizes.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=60)
WARM, ROUNDS = 3, 20


def main(rank: int, port: int, device_name: str, sizes: list[int]) -> None:
    """Join the group and measure all sizes."""
    device, c10d = torch.device(device_name), dist
    store: Any = c10d.TCPStore("127.0.0.1", port, 2, rank == 0, TIMEOUT)
    group = _join(store, rank, device)
    told: dict[int, float] = {}
    for size in sizes:
        data = torch.full((size,), rank, dtype=torch.uint8, device=device)
        taken: list[float] = []
        for _ in range(WARM + ROUNDS):
            started = time.perf_counter()
            for sends in (rank == 0, rank == 1):
                work = group.send([data], 1 - rank, 0) if sends else group.recv([data], 1 - rank, 0)
                work.wait()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - started)
        told[size] = round(1e3 * statistics.median(taken[WARM:]) / 2, 4)
    if rank == 0:
        print(json.dumps(told), flush=True)
    # If a rank exits, the transfers of the other rank fail.
    store.set(f"done/{rank}", b"")
    store.wait([f"done/{1 - rank}"], TIMEOUT)


def _join(store: Any, rank: int, device: torch.device) -> Any:
    c10d: Any = dist
    if device.type == "cuda":
        torch.cuda.set_device(device)
        return c10d.ProcessGroupNCCL(store, rank, 2, c10d.ProcessGroupNCCL.Options())
    return c10d.ProcessGroupGloo(store, rank, 2, TIMEOUT)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], [int(each) for each in sys.argv[4:]])
