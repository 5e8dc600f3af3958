"""Which files are images and videos, by how they begin."""

from __future__ import annotations

import base64

import pytest

from antiphon.errors import InvalidArgument
from gateway.media.vision_in import IMAGE, VIDEO, File, image_media_type, read_files

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
def test_file_of_no_known_format_is_refused(file: bytes) -> None:
    assert image_media_type(file) == ""
    for kind in (IMAGE, VIDEO):
        for data in (file, base64.b64encode(file).decode()):
            with pytest.raises(InvalidArgument) as raised:
                read_files([File("it", data)], kind)
            assert raised.value.field == "it"


@pytest.mark.parametrize(
    ("kind", "file"), [(IMAGE, PNG), (IMAGE, JPEG), (IMAGE, WEBP), (VIDEO, MP4)]
)
def test_file_is_taken_as_the_kind_that_it_is_and_as_no_other(kind: str, file: bytes) -> None:
    (read,) = read_files([File("it", base64.b64encode(file).decode())], kind)
    assert read.tobytes() == file
    with pytest.raises(InvalidArgument):
        read_files([File("it", file)], VIDEO if kind == IMAGE else IMAGE)
