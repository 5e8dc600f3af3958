"""Read text files aloud, several at a time; a file that has its speech already is left out."""

import argparse
import asyncio
import base64
from pathlib import Path

from openai import APIError, AsyncOpenAI

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("texts", type=Path, nargs="+", help="text files")
arguments.add_argument("--url", default="http://localhost:8000")
arguments.add_argument(
    "--voice", default="", help=("voice (default: the default voice of the model)")
)
arguments.add_argument(
    "--recording", type=Path, help=("recording of the voice, for a model that clones voices")
)
arguments.add_argument("--format", default="wav", choices=("wav", "mp3", "flac", "opus"))
arguments.add_argument("--at-once", type=int, default=4, help="number of concurrent requests")
arguments.add_argument(
    "--out", type=Path, default=Path("speech"), help=("directory for the recordings")
)
options = arguments.parse_args()
voice = {}
if options.recording:
    data = base64.b64encode(options.recording.read_bytes()).decode()
    voice = {"reference_audio": {"data": data}}


async def main() -> None:
    """Exit with status 1 if any file could not be read aloud."""
    # If the server has no free slot, the client waits and tries again.
    api = AsyncOpenAI(base_url=f"{options.url}/v1", api_key="none", max_retries=10)
    model = (await api.models.list()).data[0].id
    slots = asyncio.Semaphore(options.at_once)
    options.out.mkdir(parents=True, exist_ok=True)
    spoken = await asyncio.gather(*(speak(api, model, text, slots) for text in options.texts))
    print(f"{sum(spoken)} of {len(spoken)} files are in {options.out}.")
    raise SystemExit(0 if all(spoken) else 1)


async def speak(api: AsyncOpenAI, model: str, text: Path, slots: asyncio.Semaphore) -> bool:
    """Write the speech for a file. Returns whether this was successful."""
    out = options.out / f"{text.stem}.{options.format}"
    if out.exists():
        return True
    partial = out.with_suffix(".part")
    async with slots:
        try:
            words = await asyncio.to_thread(text.read_text)
            async with api.audio.speech.with_streaming_response.create(
                model=model,
                input=words,
                voice=options.voice,
                response_format=options.format,
                # Request a complete file, whose header contains its length. This isn't possible
                # with a stream.
                extra_body={"delivery": "whole", "options": voice},
            ) as speech:
                await speech.stream_to_file(partial)
        except (APIError, OSError, UnicodeDecodeError) as error:
            print(f"{text}: {error}")
            return False
    partial.rename(out)
    print(f"{text} -> {out}")
    return True


asyncio.run(main())
