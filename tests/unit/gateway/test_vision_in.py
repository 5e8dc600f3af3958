"""Which files are images and videos, by how they begin."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from antiphon.errors import InvalidArgument
from antiphon_gateway.media.vision_in import IMAGE, VIDEO, File, image_media_type, read_files
from antiphon_gateway.threads import SizedThreads

THREADS = SizedThreads("media")
PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
WEBP, MP4 = b"RIFF\x24\0\0\0WEBP", b"\0\0\0\x20ftypisom"
NEITHER = {
    "nothing": b"\0" * 32,
    "png cut short": PNG[:-1],
    "png of old": b"\x89PNG\n\n\x1a\n" + bytes(32),
    "jpeg cut short": JPEG[:-1],
    "sound in riff": b"RIFF\x24\0\0\0WAVEfmt ",
    "webp in nothing": b"RIFX\x24\0\0\0WEBPVP8 ",
    "webp a byte late": b"RIFF\x24\0\0\0\0WEBP",
    "mp4 a byte late": b"\0\0\0\0\x20ftypisom",
    "mp4 without its size": b"ftypisom" + bytes(32),
}


@pytest.mark.parametrize(
    ("begins", "media_type"),
    [(PNG, "image/png"), (JPEG, "image/jpeg"), (WEBP, "image/webp"), (MP4, "")],
)
def test_image_is_known_by_its_beginning(begins: bytes, media_type: str) -> None:
    assert image_media_type(begins) == media_type
    assert image_media_type(begins + bytes(100)) == media_type
    assert image_media_type(b" " + begins) == ""


@pytest.mark.parametrize("file", NEITHER.values(), ids=NEITHER)
async def test_file_of_no_known_format_is_refused(file: bytes) -> None:
    assert image_media_type(file) == ""
    for kind in (IMAGE, VIDEO):
        for data in (file, base64.b64encode(file).decode()):
            with pytest.raises(InvalidArgument) as raised:
                await read_files([File("it", data)], kind, THREADS)
            assert raised.value.field == "it"


def picture(name: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 3)).save(file, name)
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "file"),
    [(IMAGE, picture("PNG")), (IMAGE, picture("JPEG")), (IMAGE, picture("WEBP")), (VIDEO, MP4)],
    ids=["png", "jpeg", "webp", "mp4"],
)
async def test_file_is_taken_as_the_kind_that_it_is_and_as_no_other(kind: str, file: bytes) -> None:
    (read,) = await read_files([File("it", base64.b64encode(file).decode())], kind, THREADS)
    assert read.tobytes() == file
    with pytest.raises(InvalidArgument):
        await read_files([File("it", file)], VIDEO if kind == IMAGE else IMAGE, THREADS)
