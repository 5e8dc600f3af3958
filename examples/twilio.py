"""Answer telephone calls: a bridge from Twilio's Media Streams to /v1/realtime.

Point a call at it with TwiML: <Connect><Stream url="wss://your.host/"/></Connect>. Both sides carry
mu-law at 8 kHz, so audio passes through as it is.
"""

import argparse
import asyncio
import json

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

MU_LAW = {"type": "audio/pcmu"}
BYTES_PER_MS = 8

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("--url", default="http://localhost:8000")
arguments.add_argument("--host", default="localhost")
arguments.add_argument(
    "--port", type=int, default=8080, help=("port to listen on; 0 selects a free port")
)
arguments.add_argument("--instructions", default="You answer the telephone. Be brief.")
options = arguments.parse_args()


async def answer(phone: ServerConnection) -> None:
    """Handle one call until either side hangs up."""
    url = f"{options.url.replace('http', 'ws', 1)}/v1/realtime"
    try:
        async with connect(url) as model, asyncio.TaskGroup() as tasks:
            audio = {
                "input": {"format": MU_LAW, "turn_detection": {"type": "server_vad"}},
                "output": {"format": MU_LAW},
            }
            session = {"type": "realtime", "instructions": options.instructions, "audio": audio}
            await model.send(json.dumps({"type": "session.update", "session": session}))
            call = Call(phone, model)
            tasks.create_task(call.listen())
            tasks.create_task(call.speak())
    except* ConnectionClosed:
        pass


class Call:
    """Passes Twilio's frames to the realtime API, and realtime events to Twilio."""

    def __init__(self, phone: ServerConnection, model: ClientConnection) -> None:
        self.phone, self.model = phone, model
        self.stream = ""
        self.item = ""  # the answer that the caller hears
        self.sent_ms = self.played_ms = 0

    async def listen(self) -> None:
        """Send the caller's audio to the model. Twilio returns a mark after the audio before it has
        been played.
        """
        async for frame in self.phone:
            message = json.loads(frame)
            match message["event"]:
                case "start":
                    self.stream = message["start"]["streamSid"]
                case "media":
                    await self._to_model(
                        "input_audio_buffer.append", audio=message["media"]["payload"]
                    )
                case "mark":
                    item, _, played = message["mark"]["name"].rpartition(":")
                    if item == self.item:
                        self.played_ms = int(played)
                case "stop":
                    break
        await self.model.close()

    async def speak(self) -> None:
        """Send the model's audio to the caller, and stop when the caller starts to speak."""
        async for frame in self.model:
            event = json.loads(frame)
            match event["type"]:
                case "response.output_audio.delta":
                    await self._play(event["item_id"], event["delta"])
                case "input_audio_buffer.speech_started":
                    await self._interrupt()
                case "response.output_audio_transcript.done":
                    print(f"Model: {event['transcript']}", flush=True)
                case "error":
                    print(f"Error: {event['error']['message']}", flush=True)
        await self.phone.close()

    async def _play(self, item: str, payload: str) -> None:
        if item != self.item:
            self.item, self.sent_ms, self.played_ms = item, 0, 0
        padding = payload.count("=", -2)
        self.sent_ms += (len(payload) * 3 // 4 - padding) // BYTES_PER_MS
        await self._to_phone("media", media={"payload": payload})
        await self._to_phone("mark", mark={"name": f"{item}:{self.sent_ms}"})

    async def _interrupt(self) -> None:
        await self._to_phone("clear")
        if self.played_ms < self.sent_ms:
            cut = {"item_id": self.item, "content_index": 0, "audio_end_ms": self.played_ms}
            await self._to_model("conversation.item.truncate", **cut)
        self.sent_ms = self.played_ms

    async def _to_phone(self, event: str, **fields: object) -> None:
        await self.phone.send(json.dumps({"event": event, "streamSid": self.stream, **fields}))

    async def _to_model(self, kind: str, **fields: object) -> None:
        await self.model.send(json.dumps({"type": kind, **fields}))


async def main() -> None:
    """Serve calls until the process is interrupted."""
    async with serve(answer, options.host, options.port) as server:
        host, port = server.sockets[0].getsockname()[:2]
        print(f"Calls are answered at ws://{host}:{port}/", flush=True)
        await server.serve_forever()


asyncio.run(main())
