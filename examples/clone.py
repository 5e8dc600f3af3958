"""Speak a text with the voice of a recording."""

import argparse
import base64
from pathlib import Path

from openai import OpenAI

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument(
    "recording", type=Path, help=("recording of the voice (WAV, MP3, FLAC or Ogg)")
)
arguments.add_argument("text", nargs="?", default="This is my voice, and I never said this.")
arguments.add_argument(
    "--says", default="", help="transcript of the recording, which makes the voice more similar"
)
arguments.add_argument("--url", default="http://localhost:8000")
arguments.add_argument("--out", type=Path, default=Path("speech.wav"))
options = arguments.parse_args()

api = OpenAI(base_url=f"{options.url}/v1", api_key="none")
model = api.models.list().data[0]
offered = {option["name"] for option in model.model_dump()["options"]}
if "reference_audio" not in offered:
    raise SystemExit(f"{model.id} does not clone voices; serve a model that does.")
voice = {"reference_audio": {"data": base64.b64encode(options.recording.read_bytes()).decode()}}
if options.says:
    voice["reference_text"] = options.says
with api.audio.speech.with_streaming_response.create(
    model=model.id,
    # This recording provides the voice.
    voice="",
    input=options.text,
    response_format="wav",
    # Request a complete file, whose header contains its length. This isn't possible with a stream.
    extra_body={"options": voice, "delivery": "whole"},
) as speech:
    speech.stream_to_file(options.out)
print(f"The speech is in {options.out}.")
