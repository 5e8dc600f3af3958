"""Let the model call a function, and speak the answer."""

import argparse
import base64
import json
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from openai import OpenAI

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("question", nargs="?", default="What time is it in Paris?")
arguments.add_argument("--url", default="http://localhost:8000")
arguments.add_argument("--out", type=Path, default=Path("answer.wav"))
options = arguments.parse_args()

ZONES = {"paris": "Europe/Paris", "london": "Europe/London", "berlin": "Europe/Berlin"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": "The time in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


def get_time(city: str) -> str:
    """Return the time in a city as JSON, such as {"time": "13:05"}."""
    return json.dumps({"time": datetime.now(ZoneInfo(ZONES[city.lower()])).strftime("%H:%M")})


api = OpenAI(base_url=f"{options.url}/v1", api_key="none")
model = api.models.list().data[0].id
messages = [{"role": "user", "content": options.question}]

asked = api.chat.completions.create(model=model, messages=messages, tools=TOOLS)
message = asked.choices[0].message
if not message.tool_calls:
    raise SystemExit(f"The model calls no function: {message.content}")
messages.append(message.model_dump(exclude_none=True))
for call in message.tool_calls:
    result = get_time(**json.loads(call.function.arguments))
    print(f"{call.function.name}({call.function.arguments}) = {result}")
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

answer = api.chat.completions.create(
    model=model,
    messages=messages,
    tools=TOOLS,
    modalities=["text", "audio"],
    audio={"voice": "alloy", "format": "wav"},
)
audio = answer.choices[0].message.audio
print(audio.transcript)
options.out.write_bytes(base64.b64decode(audio.data))
