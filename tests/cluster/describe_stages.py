"""What the outgoing links of stages are: `python -m tests.cluster.describe_stages ADDRESS ...`.

For stages that are reached from their own network namespace alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import antiphon


async def _links(addresses: list[str]) -> list[list[dict[str, Any]]]:
    """Of each stage in turn: the peer, the transport, and why better ones were refused."""
    told = []
    for address in addresses:
        async with antiphon.AsyncStageClient(address) as stage:
            links = (each for each in (await stage.describe()).links if each.outgoing)
            told.append(
                [
                    {
                        "peer": each.peer_role,
                        "transport": each.transport,
                        "refused": list(each.refused),
                        "counts": dict(each.counts),
                    }
                    for each in links
                ]
            )
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_links(sys.argv[1:]))))
