"""Ask a question and get the answer as text and audio."""

import argparse
import base64
from pathlib import Path

from openai import OpenAI

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("question", nargs="?", default="What is antiphon?")
arguments.add_argument("--url", default="http://localhost:8000")
arguments.add_argument("--voice", default="alloy")
arguments.add_argument("--out", type=Path, default=Path("answer.wav"))
options = arguments.parse_args()

api = OpenAI(base_url=f"{options.url}/v1", api_key="none")
answer = api.chat.completions.create(
    model=api.models.list().data[0].id,
    modalities=["text", "audio"],
    audio={"voice": options.voice, "format": "wav"},
    messages=[{"role": "user", "content": options.question}],
)
audio = answer.choices[0].message.audio
assert audio is not None
print(audio.transcript)
options.out.write_bytes(base64.b64decode(audio.data))
print(f"The audio is in {options.out}.")
