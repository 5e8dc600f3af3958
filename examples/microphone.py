"""Talk with the model in a terminal: the microphone is open, and speech interrupts an answer."""

import argparse
import asyncio
import base64
import contextlib
from typing import Any

import sounddevice
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

RATE_HZ, SAMPLE_BYTES, PIECE_S = 24_000, 2, 0.04

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--url", default="http://localhost:8000")
arguments.add_argument("--instructions", default="")
arguments.add_argument("--turns", type=int, default=0, help="exit after this number of answers")
options = arguments.parse_args()


class Loudspeaker:
    """Plays the answer, and keeps track of how much of it has been played."""

    def __init__(self) -> None:
        self.item = ""
        self._waiting, self._played = bytearray(), 0

    @property
    def played_ms(self) -> int:
        """The duration that has been played of the current item."""
        return self._played * 1000 // (RATE_HZ * SAMPLE_BYTES)

    @property
    def playing(self) -> bool:
        """Whether there is still audio to play."""
        return bool(self._waiting)

    def play(self, item: str, pcm16: bytes) -> None:
        """Add audio to an item."""
        if item != self.item:
            self.item, self._played = item, 0
        self._waiting += pcm16

    def clear(self) -> None:
        """Stop playing immediately."""
        self._waiting.clear()

    def fill(self, out: Any, *_: object) -> None:
        """Fill the device's buffer. If there isn't enough audio, the rest is silence."""
        piece = bytes(self._waiting[: len(out)])
        del self._waiting[: len(piece)]
        self._played += len(piece)
        out[:] = piece.ljust(len(out), b"\0")


async def main() -> None:
    """Hold the conversation until it is interrupted with Ctrl-C."""
    api = AsyncOpenAI(base_url=f"{options.url}/v1", api_key="none")
    model = (await api.models.list()).data[0].id
    heard: asyncio.Queue[bytes] = asyncio.Queue(maxsize=100)
    loop, loudspeaker = asyncio.get_running_loop(), Loudspeaker()

    def hear(piece: Any, *_: object) -> None:
        loop.call_soon_threadsafe(lambda data: heard.full() or heard.put_nowait(data), bytes(piece))

    format_: dict[str, Any] = {"samplerate": RATE_HZ, "channels": 1, "dtype": "int16"}
    piece = {"blocksize": int(RATE_HZ * PIECE_S)}
    async with api.realtime.connect(model=model) as connection:
        detection = {"type": "server_vad"}
        hearing = {"turn_detection": detection, "transcription": {"model": model}}
        session: Any = {"type": "realtime", "audio": {"input": hearing}}
        if options.instructions:
            session["instructions"] = options.instructions
        await connection.session.update(session=session)
        with (
            sounddevice.RawInputStream(callback=hear, **format_, **piece),
            sounddevice.RawOutputStream(callback=loudspeaker.fill, **format_),
        ):
            print("Speak; a pause ends your turn. Ctrl-C ends the conversation.", flush=True)
            speaking = asyncio.create_task(speak(connection, heard))
            await listen(connection, loudspeaker)
            speaking.cancel()


async def speak(connection: AsyncRealtimeConnection, heard: asyncio.Queue[bytes]) -> None:
    """Send the audio from the microphone."""
    while True:
        audio = base64.b64encode(await heard.get()).decode()
        await connection.input_audio_buffer.append(audio=audio)


async def listen(connection: AsyncRealtimeConnection, loudspeaker: Loudspeaker) -> None:
    """Print what both sides say, and play the answers."""
    answers = 0
    async for event in connection:
        match event.type:
            case "input_audio_buffer.speech_started" if loudspeaker.playing:
                # Let the model know how much of its answer the user has heard.
                await connection.conversation.item.truncate(
                    item_id=loudspeaker.item, content_index=0, audio_end_ms=loudspeaker.played_ms
                )
                loudspeaker.clear()
            case "conversation.item.input_audio_transcription.completed":
                print(f"You: {event.transcript}", flush=True)
            case "response.output_audio.delta":
                loudspeaker.play(event.item_id, base64.b64decode(event.delta))
            case "response.output_audio_transcript.done":
                print(f"Model: {event.transcript}", flush=True)
            case "error":
                print(f"Error: {event.error.message}", flush=True)
            case "response.done":
                answers += 1
                if answers == options.turns:
                    return


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
