"""A pod for the kubelet's own tests: `python -m tests.cluster.tiny_pod ADDRESS:PORT FOLDER`.

It answers `GET /NAME` with 200 where FOLDER has no file of that name, and with 503 where it has
one. With a file `deaf` SIGTERM does nothing.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path


async def _main(listen: str, folder: Path) -> None:
    ended = asyncio.Event()
    answering: set[asyncio.Task[None]] = set()

    def told() -> None:
        print("told to end", flush=True)
        if not (folder / "deaf").exists():
            ended.set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(answer(reader, writer))
        answering.add(task)
        task.add_done_callback(answering.discard)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        name = line.split(b" ")[1].decode().strip("/") if line else ""
        status = "503 No" if (folder / name).exists() else "200 OK"
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told)
    host, port = listen.rsplit(":", 1)
    async with await asyncio.start_server(begin, host, int(port)):
        await ended.wait()
    # Answers that are cancelled at the end of the loop would be reported by it.
    await asyncio.gather(*answering, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2])))
