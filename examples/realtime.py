"""Speak one turn from a WAV file and save the spoken answer."""

import argparse
import asyncio
import base64
import time
import wave
from pathlib import Path

import soundfile
import soxr
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

RATE_HZ = 24_000
PIECE_S = 0.1

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("question", type=Path, help="a WAV file")
arguments.add_argument("--url", default="http://localhost:8000")
arguments.add_argument("--out", type=Path, default=Path("answer.wav"))
options = arguments.parse_args()


async def main() -> None:
    """Hold the conversation."""
    api = AsyncOpenAI(base_url=f"{options.url}/v1", api_key="none")
    model = (await api.models.list()).data[0].id
    async with api.realtime.connect(model=model) as connection:
        await connection.session.update(
            session={
                "type": "realtime",
                "audio": {
                    # The gateway detects the end of the turn.
                    "input": {
                        "turn_detection": {"type": "server_vad"},
                        "transcription": {"model": model},
                    },
                },
            }
        )
        speaking = asyncio.create_task(speak(connection))
        await listen(connection)
        await speaking


async def speak(connection: AsyncRealtimeConnection) -> None:
    """Send the recording at the speed of a microphone, followed by silence until the turn has
    ended.
    """
    samples, rate_hz = soundfile.read(options.question, dtype="float32", always_2d=True)
    speech = soxr.resample(samples.mean(axis=1), rate_hz, RATE_HZ)
    piece = int(RATE_HZ * PIECE_S) * 2
    pcm16 = (speech.clip(-1, 1) * 32767).astype("<i2").tobytes() + bytes(10 * piece)
    for start in range(0, len(pcm16), piece):
        audio = base64.b64encode(pcm16[start : start + piece]).decode()
        await connection.input_audio_buffer.append(audio=audio)
        await asyncio.sleep(PIECE_S)


async def listen(connection: AsyncRealtimeConnection) -> None:
    """Print the transcripts, and save the audio of one answer."""
    ended_at, first_audio_at, answer = 0.0, 0.0, bytearray()
    async for event in connection:
        match event.type:
            case "input_audio_buffer.speech_stopped":
                ended_at = time.monotonic()
            case "conversation.item.input_audio_transcription.completed":
                print(f"You: {event.transcript}")
            case "response.output_audio.delta":
                first_audio_at = first_audio_at or time.monotonic()
                answer += base64.b64decode(event.delta)
            case "response.output_audio_transcript.done":
                print(f"Model: {event.transcript}")
            case "error":
                raise SystemExit(event.error.message)
            case "response.done":
                break
    with wave.open(str(options.out), "wb") as file:
        file.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
        file.writeframes(answer)
    delay_s = first_audio_at - ended_at
    print(f"First audio {delay_s:.2f} s after the end of the turn; the audio is in {options.out}.")


asyncio.run(main())
