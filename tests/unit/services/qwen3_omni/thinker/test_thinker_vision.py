"""Images on their way into a prompt: their places, their pixels, and what is refused."""

from __future__ import annotations

import dataclasses
import io
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import WhisperFeatureExtractor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from antiphon.errors import InvalidArgument, NotImplementedYet
from antiphon.pipelines.files import read_config
from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon.runtime.engine import LoadedStage
from antiphon.values.conversation import (
    Conversation,
    ConversationMessage,
    ImagePart,
    TextPart,
    VideoPart,
)
from antiphon_services.qwen3_omni.thinker.audio import audio_tower
from antiphon_services.text.chat import load_chat_tokenizer
from antiphon_services.thinker import vision
from antiphon_services.thinker.audio import AudioFrontEnd
from antiphon_services.thinker.patches import PatchMaker
from antiphon_services.thinker.prompt import PromptFactory
from antiphon_services.thinker.vision import Sizes, VisionFrontEnd, Visual, measure_image
from antiphon_testkit.conversations import conversation
from antiphon_testkit.drive_engine import run_segment
from antiphon_testkit.qwen3_omni.reference import Reference
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import segment

NAME = "image.0"


def no_video(file: Any, name: str) -> Any:
    raise AssertionError(f"{name} is not looked at")


@pytest.fixture(scope="module")
def sizes(small_dir: Path) -> Sizes:
    processor: Any = Qwen2VLImageProcessorPil.from_pretrained(small_dir)
    side = processor.patch_size * processor.merge_size
    return Sizes(side, processor.size["shortest_edge"], processor.size["longest_edge"])


@pytest.fixture(scope="module")
def prompts(small_dir: Path, sizes: Sizes) -> PromptFactory:
    extractor = WhisperFeatureExtractor.from_pretrained(small_dir)
    return PromptFactory(
        load_chat_tokenizer(small_dir),
        AudioFrontEnd(extractor, audio_tower(50), max_audio_s=3.0),
        SpecialIds.from_config(read_config(small_dir)),
        context_limit=400,
        vision=VisionFrontEnd(partial(measure_image, sizes), no_video, max_images=3, max_videos=0),
    )


def noise(width: int, height: int, channels: int = 3, seed: int = 0) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (height, width, channels), dtype=np.uint8)


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png(width: int, height: int) -> bytes:
    return file_of(Image.fromarray(noise(width, height)))


def array(file: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(file, np.uint8)


def pixels_of(sizes: Sizes, file: bytes) -> np.ndarray[Any, Any]:
    image = measure_image(sizes, array(file), NAME).pixels()
    assert isinstance(image, Image.Image)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize(
    "shapes", [[(64, 64)], [(160, 96), (31, 200)], [(1, 1), (17, 33), (300, 90)]]
)
def test_ids_equal_the_processors(
    prompts: PromptFactory, small_dir: Path, shapes: list[tuple[int, int]]
) -> None:
    parts: list[Any] = ["Look:"]
    for width, height in shapes:
        parts += [png(width, height), "and"]
    shown = conversation(("user", parts), ("assistant", "Yes."), ("user", "So?"))
    prompt = prompts.prepare(shown, speaks=True)
    pixels = [noise(*shape) for shape in shapes]
    wanted = Reference(small_dir).inputs(shown, pixels)
    assert prompt.ids.tolist() == wanted["input_ids"][0].tolist()
    merged = [[t, h // 2, w // 2] for t, h, w in wanted["image_grid_thw"].tolist()]
    tensors = prompt.tensors()
    assert tensors["grids"].tolist() == merged
    assert tensors["steps"].tolist() == [1] * len(shapes)
    assert prompt.image_positions == sum(h * w for _, h, w in merged)
    for visual, given in zip(prompt.visuals, pixels, strict=True):
        np.testing.assert_array_equal(np.asarray(visual.pixels()), given)


@pytest.mark.parametrize("frames", [2, 4, 3, 1])
def test_patches_of_a_video_are_those_of_its_frames_as_images(small_dir: Path, frames: int) -> None:
    """Two frames that are one are an image, which the checkpoint's own processor cuts."""
    processor: Any = Qwen2VLImageProcessorPil.from_pretrained(small_dir)
    seen = [noise(96, 64, seed=at // 2) for at in range(frames)]
    visual = Visual("video", (1, 1, 1), 13, lambda: np.stack(seen), 1)
    made = PatchMaker(processor)(visual)
    still = Image.fromarray(seen[0])
    wanted = processor(images=list(map(Image.fromarray, seen[::2])), return_tensors="np")
    times, rows, columns = made.grid
    assert (times, rows, columns) == (-(-frames // 2), *wanted["image_grid_thw"][0, 1:])
    np.testing.assert_allclose(made.patches, wanted["pixel_values"], atol=1e-6)
    image = PatchMaker(processor)(Visual("image", (1, 1, 1), 1, lambda: still, 1))
    np.testing.assert_allclose(made.patches[: rows * columns], image.patches, atol=1e-6)
    assert image.digest != made.digest
    assert image.digest < 0
    assert made.digest < 0


def test_words_say_nothing_of_grids(prompts: PromptFactory) -> None:
    assert set(prompts.prepare(conversation(("user", "Hi")), speaks=True).tensors()) == {"ids"}


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_other_formats_are_read(sizes: Sizes, kind: str) -> None:
    flat = Image.new("RGB", (40, 60), (10, 200, 90))
    pixels = pixels_of(sizes, file_of(flat, kind))
    assert pixels.shape == (60, 40, 3)
    assert np.abs(pixels.astype(int) - (10, 200, 90)).max() < 8


def test_image_stands_upright_when_its_file_says_that_it_lies(sizes: Sizes) -> None:
    lying = Image.fromarray(noise(96, 64))
    exif = Image.Exif()
    exif[0x0112] = 6
    file = file_of(lying, exif=exif)
    visual = measure_image(sizes, array(file), NAME)
    assert visual.grid == (1, 3, 2)
    np.testing.assert_array_equal(pixels_of(sizes, file), np.rot90(noise(96, 64), -1))


def test_what_is_clear_is_white(sizes: Sizes) -> None:
    seen = noise(50, 50, 4)
    seen[..., 3] = np.where(np.arange(50) < 25, 0, 255)
    pixels = pixels_of(sizes, file_of(Image.fromarray(seen)))
    assert (pixels[:, :25] == 255).all()
    np.testing.assert_array_equal(pixels[:, 25:], seen[:, 25:, :3])


@pytest.mark.parametrize("mode", ["L", "P", "1", "LA", "I;16"])
def test_any_kind_of_colour_becomes_rgb(sizes: Sizes, mode: str) -> None:
    assert pixels_of(sizes, file_of(Image.new(mode, (40, 40)))).shape == (40, 40, 3)


WRONG: dict[str, tuple[bytes, str]] = {
    "no image": (b"\x89PNG\r\n\x1a\n and then nothing", "PNG"),
    "another format": (file_of(Image.new("RGB", (9, 9)), "BMP"), "PNG"),
    "too long and thin": (file_of(Image.new("1", (1000, 2))), "aspect ratio"),
    "cut in the header": (png(60, 60)[:20], "image.0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_image_is_refused_by_its_header(prompts: PromptFactory, name: str) -> None:
    file, why = WRONG[name]
    with pytest.raises(InvalidArgument, match=why) as raised:
        prompts.prepare(conversation(("user", file)), speaks=False)
    assert raised.value.field == NAME


def test_image_is_refused_when_it_is_cut_off(sizes: Sizes) -> None:
    visual = measure_image(sizes, array(png(60, 60)[:4000]), NAME)
    with pytest.raises(InvalidArgument, match="can't be decoded") as raised:
        visual.pixels()
    assert raised.value.field == NAME


def head_of_png(width: int, height: int) -> bytes:
    """A file whose pixels never come."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + b"\0\0\0\0IDAT"


@pytest.mark.parametrize("side", [9_000, 12_000, 60_000])
def test_a_small_file_of_very_many_pixels_is_refused_before_they_are_made(
    sizes: Sizes, side: int
) -> None:
    """The header alone: what is behind it would be hundreds of megabytes."""
    file = head_of_png(side, side)
    with pytest.raises(InvalidArgument, match=r"pixels|decoded") as raised:
        measure_image(sizes, array(file), NAME)
    assert raised.value.field == NAME
    assert side * side > vision.MAX_PIXELS


def test_prompt_is_refused_before_a_pixel_is_decoded_when_it_is_too_long(
    prompts: PromptFactory,
) -> None:
    cut = png(700, 700)[:2000]
    with pytest.raises(InvalidArgument, match="context limit"):
        prompts.prepare(conversation(("user", cut)), speaks=False)


def test_images_are_refused_when_there_are_too_many(prompts: PromptFactory) -> None:
    with pytest.raises(InvalidArgument, match="the maximum is 3"):
        prompts.prepare(conversation(("user", [png(32, 32)] * 4)), speaks=False)


def test_images_are_refused_when_not_the_user_shows_them(prompts: PromptFactory) -> None:
    messages = (
        ConversationMessage("system", (ImagePart(0),)),
        ConversationMessage("user", (TextPart("Hi"),)),
    )
    with pytest.raises(InvalidArgument, match="only allowed in user messages"):
        prompts.prepare(Conversation(messages, images=(array(png(32, 32)),)), speaks=False)


def test_images_are_refused_when_the_template_has_no_place_for_them(
    prompts: PromptFactory, small_dir: Path
) -> None:
    blind = load_chat_tokenizer(small_dir)
    template = "{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}<|im_start|>assistant\n"
    blind = type(blind)(blind.tokenizer, template)
    with pytest.raises(InvalidArgument, match="0 of 1 images"):
        dataclasses.replace(prompts, chat=blind).prepare(
            conversation(("user", png(32, 32))), speaks=False
        )


def test_torch_engine_says_who_sees(small_stage: LoadedStage) -> None:
    assert small_stage.facts.input_kinds == ("text", "audio", "tools")
    assert (small_stage.facts.max_input_images, small_stage.facts.max_input_videos) == (0, 0)
    out = run_segment(small_stage.engine, *segment(conversation(("user", png(32, 32)))))
    assert out.failed is not None
    assert isinstance(out.failed.error, NotImplementedYet)
    assert "engine: vllm" in out.failed.error.message


def test_pixels_of_a_conversation_are_bounded_by_its_headers(sizes: Sizes) -> None:
    """They are all in memory at once, at full size, whatever positions they take."""
    large, small = head_of_png(8_000, 8_000), head_of_png(100, 100)
    fit = vision.MAX_CONVERSATION_PIXELS // 64_000_000
    assert fit * 64_000_000 == vision.MAX_CONVERSATION_PIXELS
    eyes = VisionFrontEnd(partial(measure_image, sizes), no_video, max_images=64, max_videos=0)
    turns = [("user", large)] * fit
    assert len(eyes.look(conversation(*turns))) == fit
    with pytest.raises(InvalidArgument) as raised:
        eyes.look(conversation(*turns, ("user", small)))
    assert raised.value.field == f"image.{fit}"
    assert f"the maximum is {vision.MAX_CONVERSATION_PIXELS}" in raised.value.message
    assert "smaller" in raised.value.message


def test_frames_of_a_video_count_as_pixels_of_its_conversation() -> None:
    frames = Visual("video", (2, 1, 1), 1, lambda: noise(1, 1), vision.MAX_CONVERSATION_PIXELS)
    eyes = VisionFrontEnd(no_video, lambda file, name: frames, max_images=0, max_videos=2)
    messages = [ConversationMessage("user", (VideoPart(index),)) for index in range(2)]
    one = Conversation(tuple(messages[:1]), videos=(array(b"one"),))
    two = Conversation(tuple(messages), videos=(array(b"one"), array(b"two")))
    assert eyes.look(one) == (frames,)
    with pytest.raises(InvalidArgument) as raised:
        eyes.look(two)
    assert raised.value.field == "video.1"
