"""What Open WebUI asks of a server, in its order: from adding the connection to a spoken chat.

The requests are those of its `routers/openai.py`, `tasks.py` and `audio.py`: aiohttp's, with a
user's name in headers if told so, and with nothing of OpenAI's client.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from antiphon.values.conversation import TextPart, from_tensors
from tests.contract.fake_stages import TEXTS, THINKER
from tests.contract.reading_model import Reader
from tests.contract.served_gateway import MODEL, ServedGateway
from tests.contract.test_transcriptions import SAID, file

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = {"Authorization": "Bearer none"}
USER = {
    "X-OpenWebUI-User-Name": "A%20User",
    "X-OpenWebUI-User-Id": "u1",
    "X-OpenWebUI-User-Email": "user@example.com",
    "X-OpenWebUI-User-Role": "admin",
    "X-OpenWebUI-Chat-Id": "c1",
}
TITLE = """### Task:
Generate a concise, 3-5 word title with an emoji summarizing the chat history.
### Output:
JSON format: { "title": "your concise title here" }
### Chat History:
<chat_history>
USER: Hi
ASSISTANT: Hello there
</chat_history>"""


async def posted(served: ServedGateway, body: dict[str, Any]) -> httpx.Response:
    url = "/v1/chat/completions"
    response = await served.http.post(url, json=body, headers=KEY | USER)
    assert response.status_code == 200, response.text
    return response


async def test_open_webui_finds_the_model_and_chats(served: ServedGateway) -> None:
    # The connection is verified, and the list of models made; both ask the same.
    for headers in (KEY | {"Content-Type": "application/json"}, KEY | USER):
        listed = (await served.http.get("/v1/models", headers=headers)).json()
        assert listed["data"][0]["id"] == MODEL

    # A chat is streamed, with the usage at its end.
    messages = [{"role": "user", "content": "Hi"}]
    asked: dict[str, Any] = {"stream": True, "model": MODEL, "messages": messages}
    response = await posted(served, {**asked, "stream_options": {"include_usage": True}})
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "".join(TEXTS)
    assert chunks[-1]["usage"]["total_tokens"] > 0

    # Then it asks the model for a title, tags and what might be asked next, and for no speech.
    for limit in ({"max_completion_tokens": 1000}, {"max_tokens": 1000}, {}):
        task = [{"role": "user", "content": TITLE}]
        answer = (
            await posted(served, {"model": MODEL, "messages": task, "stream": False, **limit})
        ).json()
        assert answer["choices"][0]["message"]["content"] == "".join(TEXTS)

    # The next turn has the answer in it, and parts.
    parts = [{"type": "text", "text": "And now?"}]
    said = {"role": "assistant", "content": "".join(TEXTS)}
    system = {"role": "system", "content": "Be kind."}
    following = [system, *messages, said, {"role": "user", "content": parts}]
    await posted(served, {**asked, "messages": following})
    chunk = served.fakes[THINKER].sessions[-1].input
    assert chunk is not None
    roles = [(each.role, each.parts) for each in from_tensors(chunk.tensors).messages]
    assert roles == [
        ("system", (TextPart("Be kind."),)),
        ("user", (TextPart("Hi"),)),
        ("assistant", (TextPart("".join(TEXTS)),)),
        ("user", (TextPart("And now?"),)),
    ]


async def test_open_webui_has_speech_written_down(served: ServedGateway) -> None:
    response = await served.http.post(
        "/v1/audio/transcriptions",
        headers=KEY | USER,
        data={"model": MODEL, "language": "en"},
        files={"file": file()},
    )
    assert response.json()["text"] == SAID.strip()


async def test_open_webui_finds_the_voices_and_has_text_read_aloud(reader: Reader) -> None:
    async with httpx.AsyncClient(base_url=f"http://{reader[1].http_address}") as http:
        # Without the key. What is not there is answered as that: it has a list of its own then.
        models = await http.get("/v1/audio/models")
        assert models.status_code == 404
        assert models.json()["error"]
        voices = (await http.get("/v1/audio/voices")).json()["voices"]
        assert {each["id"]: each["name"] for each in voices} == {"alto": "alto", "bass": "bass"}
        body = {"input": "Read this.", "voice": "bass", "model": "reader"}
        said = await http.post("/v1/audio/speech", json=body, headers=KEY | USER)
        assert said.status_code == 200
        assert said.headers["content-type"] == "audio/mpeg"
        assert said.content
