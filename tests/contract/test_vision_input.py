"""Images and videos from either endpoint to the thinker's `input`, and what is refused before."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

import antiphon
from antiphon.errors import InvalidArgument, NotImplementedYet
from antiphon.v1 import stage_pb2
from antiphon.values.conversation import (
    AudioPart,
    Conversation,
    ImagePart,
    TextPart,
    VideoPart,
    from_tensors,
)
from antiphon.values.segment import FinishReason
from benchmarks.hostile import files
from tests.contract.fake_stages import INPUT_RATE_HZ, THINKER, Session
from tests.contract.served_gateway import ServedGateway, tell_anew
from tests.contract.test_audio_input import tone, wav

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Files as far as the gateway looks at them.
PNG, JPEG = files.png_of(9, 7), files.jpeg_of(9, 7)
WEBP = files.webp_of(9, 7, b"VP8 ")
MP4 = b"\x00\x00\x00\x20ftypisom and frames"
MOST_IMAGES, MOST_VIDEOS = 3, 1

IMAGE_FIELD = "messages[0].content[0].image_url.url"
VIDEO_FIELD = "messages[0].content[0].video_url.url"


@pytest.fixture
def seeing(served: ServedGateway) -> Iterator[ServedGateway]:
    """The endpoint of a gateway whose thinker takes images and videos."""
    told = served.gateway.fleet[THINKER].require()
    before = stage_pb2.DescribeResponse()
    before.CopyFrom(told)
    told.input_kinds.extend(("image", "video"))
    told.max_input_images, told.max_input_videos = MOST_IMAGES, MOST_VIDEOS
    tell_anew(served.gateway)
    yield served
    told.CopyFrom(before)
    tell_anew(served.gateway)


def data_url(file: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(file).decode()}"


def image(file: bytes = PNG, media_type: str = "image/png", **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(file, media_type), **more}}


def video(file: bytes = MP4, media_type: str = "video/mp4") -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": data_url(file, media_type)}}


async def ask(served: ServedGateway, *parts: dict[str, Any], role: str = "user") -> httpx.Response:
    return await served.chat(messages=[{"role": role, "content": list(parts)}])


def seen(served: ServedGateway) -> Conversation:
    """The conversation that came to the thinker."""
    chunk = served.fakes[THINKER].sessions[-1].input
    assert chunk is not None
    return from_tensors(chunk.tensors)


@pytest.mark.parametrize(
    ("file", "media_type"),
    [
        (PNG, "image/png"),
        (JPEG, "image/jpeg"),
        (JPEG, "image/jpg"),
        (WEBP, "image/webp"),
        (JPEG, "image/png"),
    ],
)
async def test_image_comes_as_it_is(seeing: ServedGateway, file: bytes, media_type: str) -> None:
    response = await ask(seeing, image(file, media_type, detail="high"))
    assert response.status_code == 200, response.text
    (came,) = seen(seeing).images
    assert (came.dtype, came.tobytes()) == (np.uint8, file)


async def test_parts_of_all_kinds_come_in_order(seeing: ServedGateway) -> None:
    sound = base64.b64encode(wav(tone(INPUT_RATE_HZ), INPUT_RATE_HZ)).decode()
    response = await ask(
        seeing,
        image(PNG),
        {"type": "text", "text": "and"},
        video(),
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
        image(JPEG, "image/jpeg"),
    )
    assert response.status_code == 200, response.text
    conversation = seen(seeing)
    assert conversation.messages[0].parts == (
        ImagePart(0), TextPart("and"), VideoPart(0), AudioPart(0), ImagePart(1),
    )  # fmt: skip
    assert [each.tobytes() for each in conversation.images] == [PNG, JPEG]
    assert [each.tobytes() for each in conversation.videos] == [MP4]
    assert len(conversation.recordings) == 1


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "media type": (image(PNG, "image/gif"), IMAGE_FIELD, "image/gif"),
    "video as image": (image(MP4, "video/mp4"), IMAGE_FIELD, "video/mp4"),
    "no image": (image(b"GIF89a and pixels"), IMAGE_FIELD, "PNG or JPEG or WebP"),
    "no video": (video(PNG), VIDEO_FIELD, "MP4"),
    "other container": (video(MP4, "video/webm"), VIDEO_FIELD, "video/webm"),
    "empty": (image(b""), IMAGE_FIELD, "empty"),
    "no url": ({"type": "image_url", "image_url": {"url": "cat.png"}}, IMAGE_FIELD, "data:"),
    "not valid base64": (
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%%"}},
        IMAGE_FIELD,
        "base64",
    ),
    "plain data": (
        {"type": "image_url", "image_url": {"url": "data:image/png,abc"}},
        IMAGE_FIELD,
        "data:TYPE;base64",
    ),
}


@pytest.mark.parametrize("name", WRONG)
async def test_file_is_refused_naming_the_field(seeing: ServedGateway, name: str) -> None:
    part, field, why = WRONG[name]
    response = await ask(seeing, part)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"].replace("[...]", "[0]"), error["code"]) == (field, "invalid_argument")
    assert why in error["message"]
    assert not seeing.fakes[THINKER].sessions


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("kind", ["image_url", "video_url"])
async def test_nothing_is_fetched(seeing: ServedGateway, kind: str, scheme: str) -> None:
    response = await ask(seeing, {"type": kind, kind: {"url": f"{scheme}://example.org/a.png"}})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "not_implemented")
    assert "data URL" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == f"messages[0].content[0].{kind}.url"


async def test_image_is_not_made_smaller(seeing: ServedGateway) -> None:
    response = await ask(seeing, image(detail="low"))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "not_implemented")
    assert response.json()["error"]["param"] == "messages[0].content[0].image_url.detail"


@pytest.mark.parametrize("part", [image(), video()])
async def test_file_is_refused_when_the_assistant_shows_it(
    seeing: ServedGateway, part: dict[str, Any]
) -> None:
    response = await ask(seeing, part, role="assistant")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_argument")


@pytest.mark.parametrize(("part", "most"), [(image(), MOST_IMAGES), (video(), MOST_VIDEOS)])
async def test_files_are_refused_when_there_are_too_many(
    seeing: ServedGateway, part: dict[str, Any], most: int
) -> None:
    response = await ask(seeing, *[part] * most)
    assert response.status_code == 200, response.text
    seeing.fakes.reset()
    response = await ask(seeing, *[part] * (most + 1))
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(f"messages[0].content[{most}].")
    assert f"more than {most}" in response.json()["error"]["message"]
    assert not seeing.fakes[THINKER].sessions


@pytest.mark.parametrize("part", [image(), video()])
async def test_file_is_refused_before_anything_begins_when_the_thinker_sees_nothing(
    served: ServedGateway, part: dict[str, Any]
) -> None:
    response = await ask(served, part)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "not_implemented")
    assert "engine: vllm" in response.json()["error"]["message"]
    assert not served.fakes[THINKER].sessions


async def test_what_is_seen_is_counted(seeing: ServedGateway) -> None:
    async def see(session: Session) -> None:
        await session.opened()
        await session.text("A cat.", FinishReason.STOP)
        await session.report(input_positions=30, input_image_positions=12, output_positions=6)

    seeing.fakes[THINKER].script = see
    details = (await ask(seeing, image())).json()["usage"]["prompt_tokens_details"]
    assert (details["image_tokens"], details["text_tokens"]) == (12, 18)
    async with antiphon.AsyncClient(seeing.gateway.grpc_address) as client:
        message = antiphon.Message.user(antiphon.Image(PNG))
        reply = await client.generate([message], modalities=("text",)).collect()
    assert reply.usage.prompt_image_tokens == 12


async def test_sdk_sends_files(seeing: ServedGateway) -> None:
    message = antiphon.Message.user(antiphon.Image(WEBP), "or", antiphon.Video(MP4))
    async with antiphon.AsyncClient(seeing.gateway.grpc_address) as client:
        await client.generate([message], modalities=("text",)).collect()
    conversation = seen(seeing)
    assert conversation.messages[0].parts == (ImagePart(0), TextPart("or"), VideoPart(0))
    assert conversation.images[0].tobytes() == WEBP
    assert conversation.videos[0].tobytes() == MP4


@pytest.mark.parametrize("part", [antiphon.Image(JPEG), antiphon.Video(MP4)])
async def test_sdk_learns_that_the_thinker_sees_nothing(
    served: ServedGateway, part: antiphon.Image | antiphon.Video
) -> None:
    async with antiphon.AsyncClient(served.gateway.grpc_address) as client:
        with pytest.raises(NotImplementedYet, match="engine: vllm"):
            await client.generate([antiphon.Message.user(part)], modalities=("text",)).collect()
    assert not served.fakes[THINKER].sessions


async def test_sdk_learns_which_part_is_no_image(seeing: ServedGateway) -> None:
    message = antiphon.Message.user("See", antiphon.Image(MP4))
    async with antiphon.AsyncClient(seeing.gateway.grpc_address) as client:
        with pytest.raises(InvalidArgument) as caught:
            await client.generate([message], modalities=("text",)).collect()
    assert caught.value.field == "messages[0].parts[1].image.file"
