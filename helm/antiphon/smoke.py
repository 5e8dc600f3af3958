"""`helm test`: waits until the gateway serves, asks it something, and fails unless it speaks.

python -c "$THIS" GATEWAY_URL SECONDS OUTPUT, with an API key in API_KEY if the gateway wants one.
OUTPUT is what the release must be able to make to be ready; empty: everything. Runs in the
gateway's image, with the standard library alone.
"""

import base64
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from typing import Any

TRY_S = 10.0
PAUSE_S = 2.0
SAID = "What is antiphon?"


def ask(url: str, body: dict[str, Any] | None = None, *, timeout: float) -> tuple[int, bytes]:
    """What the gateway answers: the status and the bytes."""
    headers = {"content-type": "application/json"}
    if key := os.environ.get("API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers)
    # The certificate is for the name that clients use, which need not be the Service's.
    unverified = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(request, timeout=timeout, context=unverified) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


def wait_ready(gateway: str, deadline: float, output: str) -> dict[str, Any]:
    """What /health says when it is ready. Ends the program when it is not in time."""
    url = f"{gateway}/health" + (f"?output={output}" if output else "")
    told = ""
    while True:
        try:
            status, body = ask(url, timeout=TRY_S)
            if status == 200:
                health: dict[str, Any] = json.loads(body)
                return health
            now = body.decode(errors="replace")
        except OSError as error:
            now = str(error)
        if now != told:
            print(f"not ready: {now}", flush=True)
            told = now
        if time.monotonic() > deadline:
            sys.exit(f"{gateway} was not ready in time; it last said: {told}")
        time.sleep(PAUSE_S)


def expect(url: str, timeout: float, body: dict[str, Any] | None = None) -> bytes:
    """What is answered; a refusal, or none in time, ends the program."""
    try:
        status, answer = ask(url, body, timeout=timeout)
    except OSError as error:
        sys.exit(f"{url}: {error}")
    if status == 401:
        sys.exit(f"{url}: the gateway wants an API key; set gateway.keys.testKey")
    if status != 200:
        sys.exit(f"{url}: status {status}: {answer.decode(errors='replace')}")
    return answer


def main(gateway: str, seconds: str, output: str) -> None:
    """Wait, ask, listen."""
    deadline = time.monotonic() + float(seconds)
    health = wait_ready(gateway, deadline, output)
    timeout = max(TRY_S, deadline - time.monotonic())
    listed = json.loads(expect(f"{gateway}/v1/models", timeout))
    model = listed["data"][0]
    print(f"serves {model['id']}, stages {', '.join(health['stages'])}", flush=True)
    speaks = health["outputs"].get("audio", False)
    if model["reads_aloud"]:
        if not model["voices"]:
            print("it clones voices and was not asked: that takes a recording")
            return
        voice = model["voices"][0]
        body = {"model": model["id"], "input": SAID, "voice": voice, "response_format": "wav"}
        text, audio = SAID, expect(f"{gateway}/v1/audio/speech", timeout, body)
    else:
        messages = [{"role": "user", "content": SAID}]
        body = {"model": model["id"], "messages": messages, "max_tokens": 64}
        if speaks:
            body |= {"modalities": ["text", "audio"], "audio": {"format": "wav"}}
            if model["voices"]:
                body["audio"]["voice"] = model["voices"][0]
        answer = expect(f"{gateway}/v1/chat/completions", timeout, body)
        message = json.loads(answer)["choices"][0]["message"]
        spoken = message.get("audio") or {}
        text = message.get("content") or spoken.get("transcript") or ""
        audio = base64.b64decode(spoken.get("data", ""))
    if not text:
        sys.exit("the answer has no text")
    if speaks and len(audio) <= 44:
        sys.exit("the answer has no audio")
    print(f"said: {text!r}, {len(audio)} bytes of audio")


main(*sys.argv[1:])
