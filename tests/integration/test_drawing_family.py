"""A family that makes images, through the real services: `tests/families/easel`."""

from __future__ import annotations

import asyncio
import base64
import importlib
import io
import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import pytest_asyncio
from PIL import Image

import antiphon
from antiphon.deployment.schema import StageConfig
from antiphon.values.sampling import Sampling
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Launcher, Running
from tests.equality.lost_replicas import failovers, kill_used

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

FAMILY = Path(__file__).parents[1] / "families" / "easel"
MODEL = "chalk"
PROMPT = "a grey cat"
MESSAGES = [{"role": "user", "content": PROMPT}]
BOTH = ["text", "image"]
REPLICAS = 2
GREEDY = Sampling(0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1000)


@pytest.fixture(scope="module", autouse=True)
def easel() -> Iterator[Any]:
    """The family's package, found here and in every process that is started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FAMILY))
        patch.setenv("PYTHONPATH", ":".join((str(FAMILY), *sys.path[1:])))
        yield importlib.import_module("easel")
    for name in [name for name in sys.modules if name.startswith("easel")]:
        del sys.modules[name]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    directory = tmp_path_factory.mktemp("model") / MODEL
    directory.mkdir()
    (directory / "config.json").write_text('{"architectures": ["EaselForDrawing"]}')
    painters = StageConfig(slots=4, replicas=REPLICAS)
    async with Launcher(local_deployment(directory, painter=painters), on_exit="restart") as run:
        yield run


@pytest_asyncio.fixture(loop_scope="module")
async def http(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=running.http_url, timeout=240) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def official(running: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{running.http_url}/v1", api_key="none", timeout=240
    ) as client:
        yield client


def drawn(size: str = "16x16", text: str = PROMPT, sampling: Sampling = GREEDY) -> bytes:
    """The file that must come, made without a runtime."""
    sketch = importlib.import_module("easel_stages.sketcher.sketch").sketch
    png = importlib.import_module("easel_stages.painter.png")
    file: bytes = png.png(png.paint(sketch(text, sampling), size))
    return file


def keyed(seed: int, choice: int = 0) -> Sampling:
    """Drawn with a client's seed."""
    sampling = Sampling(1.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=seed, max_tokens=1000)
    return sampling.keyed("sketcher", choice)


def data_url(file: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


async def post(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await http.post("/v1/images/generations", json={"prompt": PROMPT, **fields})


async def test_image_is_a_png_in_the_chat_message(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "modalities": BOTH}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    assert message["content"] == f"Here is {PROMPT}"
    url = data_url(drawn())
    assert message["images"] == [{"type": "image_url", "image_url": {"url": url}}]
    image = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    assert image.size == (16, 16)
    assert list(np.asarray(image).reshape(-1)[: len(PROMPT)]) == list(PROMPT.encode())
    details = answer.json()["usage"]["completion_tokens_details"]
    assert details["image_tokens"] == len(PROMPT)
    again = [*MESSAGES, message, {"role": "user", "content": "bluer"}]
    answer = await http.post("/v1/chat/completions", json={**body, "messages": again})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "Here is bluer"


async def test_stock_client_reads_a_stream_with_images_and_steps(
    official: openai.AsyncOpenAI,
) -> None:
    fields = {"modalities": BOTH, "options": {"steps": 3, "size": "32X16"}}
    stream = await official.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, extra_body=fields,  # type: ignore[arg-type]
    )  # fmt: skip
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == f"Here is {PROMPT}"
    extras = [chunk.choices[0].delta.model_extra or {} for chunk in chunks]
    images = [each for extra in extras for each in extra.get("images", ())]
    assert [each["image_url"]["url"] for each in images] == [data_url(drawn("32x16"))]
    steps = [(chunk.model_extra or {}).get("antiphon") for chunk in chunks]
    told = [each["progress"] for each in steps if each]
    assert told[-1] == {"stage": "painter", "done": 3, "due": 3}


async def test_steps_are_streamed_while_the_image_is_made(
    official: openai.AsyncOpenAI, tmp_path: Path
) -> None:
    until = tmp_path / "go on"
    fields = {"modalities": ["image"], "options": {"steps": 4, "until": str(until)}}
    stream = await official.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, extra_body=fields,  # type: ignore[arg-type]
    )  # fmt: skip
    told = []
    async for chunk in stream:
        if (own := (chunk.model_extra or {}).get("antiphon")) is not None:
            told.append(own["progress"])
            until.touch()
    assert told[0] == {"stage": "painter", "done": 1, "due": 4}
    assert told[-1] == {"stage": "painter", "done": 4, "due": 4}


async def test_stock_client_generates_images(official: openai.AsyncOpenAI) -> None:
    answer = await official.images.generate(
        prompt=PROMPT, model="gpt-image-1", n=2, size="32x16",  # type: ignore[arg-type]
        response_format="b64_json", quality="auto", background="opaque", user="me",
        extra_body={"seed": 7, "temperature": 1},
    )  # fmt: skip
    assert answer.data is not None
    files = [base64.b64decode(each.b64_json or "") for each in answer.data]
    assert files == [drawn("32x16", sampling=keyed(7, choice)) for choice in range(2)]
    assert files[0] != files[1]
    assert (answer.output_format, answer.size) == ("png", "32x16")
    assert answer.usage is not None
    counts = (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens)
    assert counts == (len(PROMPT), 2 * len(PROMPT), 3 * len(PROMPT)), "no caption is written"


async def test_task_is_the_clients_if_it_names_one(http: httpx.AsyncClient) -> None:
    answer = (await post(http, options={"task": "dialogue"})).json()
    caption = len(f"Here is {PROMPT}")
    assert answer["usage"]["output_tokens"] == len(PROMPT) + caption
    assert answer["usage"]["output_tokens_details"]["text_tokens"] == caption


async def test_prompt_alone_is_enough(http: httpx.AsyncClient) -> None:
    for fields in ({}, {"size": "auto", "n": None, "style": "vivid", "response_format": ""}):
        answer = await post(http, **fields)
        assert answer.status_code == 200, answer.text
        (image,) = answer.json()["data"]
        assert base64.b64decode(image["b64_json"]) == drawn()
        assert "x-antiphon-ignored" not in answer.headers


@pytest.mark.parametrize(
    ("fields", "param", "remedy"),
    [
        ({"prompt": ""}, "prompt", "describe the image"),
        ({"n": 0}, "n", "max_choices"),
        ({"n": 99}, "n", "max_choices"),
        ({"size": "1024x1024"}, "size", "16x16, 32x16"),
        ({"size": "16x16", "options": {"size": "32x16"}}, "size", "set only one"),
        ({"response_format": "url"}, "response_format", "b64_json"),
        ({"response_format": "gif"}, "response_format", "b64_json"),
        ({"output_format": "webp"}, "output_format", "png"),
        ({"output_format": "tiff"}, "output_format", "png"),
        ({"output_compression": 50}, "output_compression", "leave it out"),
        ({"background": "transparent"}, "background", "opaque"),
        ({"quality": "hd"}, "quality", "options"),
        ({"style": "natural"}, "style", "prompt"),
        ({"stream": True}, "stream", "chat/completions"),
        ({"partial_images": 2}, "partial_images", "when they are complete"),
        ({"image": "AAAA"}, "image", "prompt"),
        ({"negative_prompt": "dogs"}, "negative_prompt", "options"),
        ({"steps": 3}, "steps", "options.steps"),
        ({"options": {"steps": 0}}, "options.steps", "from 1 to 1000"),
        ({"painter": {"seed": 1}}, "painter", "sampling can't be set"),
        ({"model": "other"}, "model", MODEL),
    ],
)
async def test_what_cannot_be_made_is_refused_with_a_remedy(
    http: httpx.AsyncClient, fields: Mapping[str, object], param: str, remedy: str
) -> None:
    answer = await post(http, **fields)
    assert answer.status_code in (400, 404), answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert remedy in error["message"]


async def test_model_says_that_it_makes_images_and_of_which_sizes(http: httpx.AsyncClient) -> None:
    model = (await http.get("/v1/models")).json()["data"][0]
    assert model["outputs"] == ["text", "image"]
    sizes = {each["name"]: each.get("choices") for each in model["options"]}
    assert sizes["size"] == ["16x16", "32x16"]


async def test_images_and_the_time_to_them_are_counted(http: httpx.AsyncClient) -> None:
    async def count(name: str) -> float:
        lines = (await http.get("/metrics")).text.splitlines()
        return sum(float(each.rpartition(" ")[2]) for each in lines if each.startswith(name))

    before = await count("antiphon_gateway_images_total")
    assert (await post(http, n=2)).status_code == 200
    # The request's entry ends after its response.
    async with asyncio.timeout(240):
        while await count("antiphon_gateway_images_total") != before + 2:
            pass
    assert await count("antiphon_gateway_ttfi_seconds_count") > 0


async def test_image_is_the_same_and_comes_once_when_its_painter_is_killed(
    running: Running, tmp_path: Path
) -> None:
    until = tmp_path / "go on"
    before = await failovers(running)
    async with antiphon.AsyncClient(running.grpc_address) as client:
        generation = client.generate(
            PROMPT, temperature=1, seed=5, options={"until": str(until), "steps": 4}
        )
        events: list[antiphon.Event] = []
        async for event in generation:
            events.append(event)
            if isinstance(event, antiphon.StepProgress) and not until.exists():
                await kill_used(running, "painter", REPLICAS)
                until.touch()
    images = [image for e in events if isinstance(e, antiphon.ImageDelta) for image in e.images]
    assert [each.file for each in images] == [drawn(sampling=keyed(5))]
    steps = [each for each in events if isinstance(each, antiphon.StepProgress)]
    assert steps[0] == antiphon.StepProgress("painter", 1, 4)
    assert steps[-1] == antiphon.StepProgress("painter", 4, 4)
    assert await failovers(running) == before + 1


async def test_image_comes_once_when_the_gateway_is_killed(
    running: Running, tmp_path: Path
) -> None:
    until = tmp_path / "go on"
    async with antiphon.AsyncClient(running.grpc_address) as client:
        generation = client.generate(PROMPT, temperature=1, options={"until": str(until)})
        events: list[antiphon.Event] = []
        async for event in generation:
            events.append(event)
            if isinstance(event, antiphon.StepProgress) and not until.exists():
                running.processes["gateway"].kill()
                until.touch()
    text = "".join(each.text for each in events if isinstance(each, antiphon.TextDelta))
    assert text == f"Here is {PROMPT}"
    deltas = [each for each in events if isinstance(each, antiphon.ImageDelta)]
    (image,) = [image for each in deltas for image in each.images]
    assert Image.open(io.BytesIO(image.file)).size == (16, 16)


async def test_cancelled_image_frees_the_painter(running: Running, tmp_path: Path) -> None:
    until = tmp_path / "never"
    async with antiphon.AsyncClient(running.grpc_address) as client:
        for _ in range(2 * 4 * REPLICAS):
            generation = client.generate(PROMPT, options={"until": str(until)})
            async for event in generation:
                if isinstance(event, antiphon.StepProgress):
                    break
            generation.cancel()
        reply = await client.generate(PROMPT).collect()
    assert [each.file for each in reply.images] == [drawn()]


@pytest.mark.parametrize(
    ("service", "endpoint"), [("gateway", "http"), ("gateway", "grpc"), ("sketcher", "grpc")]
)
async def test_family_is_loaded(
    running: Running, service: str, endpoint: str, tmp_path: Path
) -> None:
    result = tmp_path / "result.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "antiphon_tools.load", service, "--model", str(running.model),
        "--seconds", "1", "--warm-up", "0.2", "--sessions", "2",
        "--json", str(result), *(("--endpoint", endpoint) if service == "gateway" else ()),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    measured = json.loads(result.read_text())
    requests = measured["requests"]
    assert requests["succeeded"] == requests["due"] > 0
    if service == "gateway":
        assert measured["images_per_s"] == measured["requests_per_s"]
        assert measured["metrics"]["ttfi"]["count"] == requests["succeeded"]
        assert [each["metric"] for each in measured["objectives"]] == ["ttfi"]
        assert measured["edges"]["image"]["messages"] == requests["succeeded"]
