"""Images as output, by an engine without a model behind the real runtime and gateway."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import antiphon
from antiphon.errors import DataLoss, Internal, ResourceExhausted
from antiphon.pipelines.edges import image_edge
from antiphon.pipelines.graph import CLIENT, Edge, Pipeline, StageSpec
from antiphon.runtime.engine import Advanced, Completed, Emitted, EngineEvent, LoadedStage
from antiphon.values.segment import SegmentKey
from antiphon.wire.images import image_parts
from antiphon_gateway.sessions.image_reader import MAX_IMAGES
from tests.integration.families import (
    IDS,
    INPUT,
    STOP,
    TEXT,
    UTF8,
    asked,
    repeats,
    served,
)
from tests.integration.scripted_engine import Chunks, facts, loaded

PAINTS = Pipeline(
    name="paints",
    architectures=(),
    stages=(StageSpec("mind", samples=True),),
    edges=(
        Edge("input", CLIENT, ("mind",), "message", (INPUT,), "messages"),
        Edge("text", "mind", (CLIENT,), "token", (IDS, UTF8), "ids"),
        image_edge("mind"),
    ),
)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(300)
# Larger than a chunk may be.
JPEG = b"\xff\xd8\xff" + bytes(range(256)) * 20_000
POSITIONS = 64


def paints(*files: bytes, sizes: Sequence[int] = (), steps: int = 0) -> LoadedStage:
    """Says what was said and makes these images, each in so many steps; `sizes` are those that it
    states."""

    def play(key: SegmentKey, chunks: Chunks) -> Iterator[EngineEvent | None]:
        for event in repeats(key, chunks):
            if not isinstance(event, Completed):
                yield event
        due = steps * len(files)
        for position, file in enumerate(files):
            for done in range(steps):
                yield Advanced(key, position * steps + done + 1, due)
            data, row = image_parts(file, POSITIONS)
            if sizes:
                row = {"images": np.array([[sizes[position], POSITIONS]], np.int64)}
            yield Emitted(key, "image", position, data)
            yield Emitted(key, "image", position, row)
        yield Emitted(key, "image", len(files), finish_reason=STOP)
        yield Completed(key, STOP, 7, len(TEXT))

    return loaded(play, facts("to-come"))


def url_of(media_type: str, file: bytes) -> dict[str, object]:
    data = base64.b64encode(file).decode()
    return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}}


BOTH = [url_of("image/png", PNG), url_of("image/jpeg", JPEG)]


@pytest.mark.parametrize("delivery", [antiphon.Delivery.STREAM, antiphon.Delivery.WHOLE])
async def test_images_reach_the_client_of_the_sdk_as_files(delivery: antiphon.Delivery) -> None:
    async with served(PAINTS, {"mind": paints(PNG, JPEG)}) as family:
        answer = await family.client.generate(TEXT, delivery=delivery).collect()
        files = [(each.media_type, each.file) for each in answer.images]
        assert files == [("image/png", PNG), ("image/jpeg", JPEG)]
        assert (answer.text, answer.pcm16) == (TEXT, b"")
        assert answer.usage.completion_image_tokens == 2 * POSITIONS
        (model,) = (await family.client.server_info()).models
        assert model.output_kinds == ("text", "image")


async def test_images_are_data_urls_over_http() -> None:
    async with served(PAINTS, {"mind": paints(PNG, JPEG)}) as family:
        whole = (await family.chat(modalities=["text", "image"])).json()
        message = whole["choices"][0]["message"]
        assert (message["content"], message["images"]) == (TEXT, BOTH)
        details = whole["usage"]["completion_tokens_details"]
        assert details["image_tokens"] == 2 * POSITIONS
        assert whole["usage"]["completion_tokens"] == len(TEXT) + 2 * POSITIONS
        streamed = await family.chat(modalities=["image"], stream=True)
        lines = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line]
        deltas = [json.loads(line)["choices"][0]["delta"] for line in lines[:-1]]
        assert [each for delta in deltas for each in delta.get("images", ())] == BOTH
        told = await family.http.get("/health", params={"output": "image"})
        assert (told.status_code, told.json()["outputs"]["image"]) == (200, True)
        refused = await family.chat(modalities=["audio"], audio={"format": "wav"})
        assert refused.json()["error"]["param"] == "modalities"


@pytest.mark.parametrize(
    ("engine", "most", "said"),
    [
        (paints(PNG, JPEG), len(JPEG), "gateway.limits.max_image_bytes"),
        (paints(PNG, sizes=[len(PNG) + 1]), len(PNG), "truncated"),
        (paints(PNG, sizes=[len(PNG) - 1]), len(PNG), "in the middle of a file"),
        (paints(b"GIF89a"), len(PNG), "not a PNG"),
        (paints(*[PNG] * (MAX_IMAGES + 1)), 1 << 20, "more than 64 images"),
    ],
)
async def test_images_that_are_too_large_or_no_files_end_the_answer(
    engine: LoadedStage, most: int, said: str
) -> None:
    async with served(PAINTS, {"mind": engine}, max_image_bytes=most) as family:
        with pytest.raises((ResourceExhausted, DataLoss), match=said):
            await family.client.generate(TEXT).collect()


async def test_steps_of_a_stage_reach_the_client_of_the_sdk() -> None:
    async with served(PAINTS, {"mind": paints(PNG, PNG, steps=4)}) as family:
        events = [each async for each in family.client.generate(TEXT)]
    steps = [each for each in events if isinstance(each, antiphon.StepProgress)]
    assert {(each.stage, each.due) for each in steps} == {("mind", 8)}
    done = [each.done for each in steps]
    assert done == sorted(set(done)), "they only grow"
    assert done[-1] == 8, "the last is always told"
    last_image = max(i for i, each in enumerate(events) if isinstance(each, antiphon.ImageDelta))
    assert events.index(steps[-1]) < last_image


async def test_steps_are_chunks_with_an_empty_delta_over_http() -> None:
    async with served(PAINTS, {"mind": paints(PNG, steps=4)}) as family:
        streamed = await family.chat(modalities=["text", "image"], stream=True)
        lines = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line]
        chunks = [json.loads(line) for line in lines[:-1]]
        told = [each for each in chunks if "antiphon" in each]
        assert told[-1]["antiphon"] == {"progress": {"stage": "mind", "done": 4, "due": 4}}
        assert all(each["choices"][0]["delta"] == {} for each in told)
        whole = (await family.chat(modalities=["text", "image"])).json()
        assert "antiphon" not in whole


@pytest.mark.parametrize(("done", "due"), [(0, 4), (5, 4), (-1, -1)])
async def test_steps_that_cannot_be_fail_the_answer(done: int, due: int) -> None:
    def play(key: SegmentKey, chunks: Chunks) -> Iterator[EngineEvent | None]:
        yield from asked(chunks)
        yield Advanced(key, done, due)

    async with served(PAINTS, {"mind": loaded(play, facts("to-come"))}) as family:
        with pytest.raises(Internal, match="steps"):
            await family.client.generate(TEXT).collect()


async def test_as_many_images_as_there_may_be_arrive() -> None:
    async with served(PAINTS, {"mind": paints(*[PNG] * MAX_IMAGES)}) as family:
        answer = await family.client.generate(TEXT).collect()
    assert len(answer.images) == MAX_IMAGES


async def test_each_image_of_an_event_is_counted() -> None:
    async with served(PAINTS, {"mind": paints(PNG, PNG, PNG)}) as family:
        await family.client.generate(TEXT, delivery=antiphon.Delivery.WHOLE).collect()
        wanted = 'antiphon_gateway_images_total{api="grpc"} 3.0'
        # The request's entry ends after its answer.
        async with asyncio.timeout(240):
            while wanted not in (await family.http.get("/metrics")).text:
                pass


async def test_prompt_without_an_image_is_an_error_that_says_so() -> None:
    async with served(PAINTS, {"mind": paints()}) as family:
        answer = await family.http.post("/v1/images/generations", json={"prompt": TEXT})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "unusable_output")


async def test_size_is_refused_by_a_model_that_has_no_choice() -> None:
    async with served(PAINTS, {"mind": paints(PNG)}) as family:
        body = {"prompt": TEXT, "size": "512x512"}
        refused = await family.http.post("/v1/images/generations", json=body)
        made = await family.http.post("/v1/images/generations", json={**body, "size": "auto"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "size")
    assert made.status_code == 200


async def test_conversations_of_a_model_with_images_are_text() -> None:
    async with (
        served(PAINTS, {"mind": paints(PNG, steps=4)}) as family,
        family.client.converse() as conversation,
    ):
        await conversation.add(TEXT)
        await conversation.respond()
        async for event in conversation:
            if isinstance(event, antiphon.ResponseDone):
                break
    assert event.response.status == "completed"
    (item,) = event.response.items
    assert item.parts == (TEXT,)
