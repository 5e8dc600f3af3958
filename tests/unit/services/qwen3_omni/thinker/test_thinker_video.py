"""Videos on their way into a prompt: which frames are seen, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import (
    Qwen3OmniMoeProcessorKwargs,
)

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon_services.qwen3_omni.thinker.load import load_intake
from antiphon_services.thinker.prompt import PromptFactory
from antiphon_services.thinker.vision import Visual
from antiphon_testkit.conversations import conversation
from antiphon_testkit.qwen3_omni.reference import Reference

cv2 = pytest.importorskip("cv2")

from antiphon_services.thinker.video import MAX_VIDEO_S  # noqa: E402
from antiphon_services.thinker.vision_loading import load_vision  # noqa: E402 - it needs OpenCV

SEEN = (320, 448)


def mp4(frames: int, rate: float, width: int = 64, height: int = 48) -> bytes:
    """Frames that get brighter, one as the other."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "clip.mp4"
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), rate, (width, height))
        for at in range(frames):
            brightness = 255 * at // max(frames - 1, 1)
            writer.write(np.full((height, width, 3), brightness, np.uint8))
        writer.release()
        return path.read_bytes()


@pytest.fixture(scope="module")
def prompts(small_dir: Path) -> PromptFactory:
    vision = load_vision(small_dir, Qwen3OmniMoeProcessorKwargs, max_images=2, max_videos=2)
    return dataclasses.replace(load_intake(small_dir, StageConfig()).prompts, vision=vision)


def look(prompts: PromptFactory, file: bytes) -> Visual:
    (visual,) = prompts.prepare(conversation(("user", file)), speaks=False).visuals
    return visual


@pytest.mark.parametrize(
    ("frames", "rate", "indices"),
    [
        (9, 4.0, [0, 3, 5, 8]),
        (25, 25.0, [0, 24]),
        (61, 30.0, [0, 20, 40, 60]),
        (10, 1.0, list(range(10))),
        (1, 25.0, [0]),
        (2, 25.0, [0, 1]),
    ],
)
def test_two_frames_a_second_are_seen(
    prompts: PromptFactory, frames: int, rate: float, indices: list[int]
) -> None:
    visual = look(prompts, mp4(frames, rate))
    assert visual.grid == (-(-len(indices) // 2), SEEN[0] // 32, SEEN[1] // 32)
    assert visual.step == 13
    pixels = np.asarray(visual.pixels())
    assert pixels.shape == (len(indices), *SEEN, 3)
    brightness = 255 * np.array(indices) / max(frames - 1, 1)
    assert np.abs(pixels.mean(axis=(1, 2, 3)) - brightness).max() < 12


def test_ids_equal_the_processors(prompts: PromptFactory, small_dir: Path) -> None:
    shown = conversation(("user", ["See:", mp4(9, 4.0), "and", mp4(5, 1.0, 96, 96), "?"]))
    prompt = prompts.prepare(shown, speaks=True)
    pixels = [np.asarray(visual.pixels()) for visual in prompt.visuals]
    wanted = Reference(small_dir).inputs(shown, videos=pixels)
    assert prompt.ids.tolist() == wanted["input_ids"][0].tolist()
    merged = [[t, h // 2, w // 2] for t, h, w in wanted["video_grid_thw"].tolist()]
    assert prompt.tensors()["grids"].tolist() == merged
    assert (wanted["video_second_per_grid"] * 13).tolist() == [13.0, 13.0]


def test_video_is_refused_when_it_is_too_long(prompts: PromptFactory) -> None:
    with pytest.raises(InvalidArgument, match="too long") as raised:
        look(prompts, mp4(int(MAX_VIDEO_S) + 2, 1.0))
    assert raised.value.field == "video.0"


@pytest.mark.parametrize(
    "file",
    [
        b"\x00\x00\x00\x20ftypisom and nothing",
        b"\x00\x00\x00\x20ftyp" + bytes(5000),
        mp4(9, 4.0)[:600],
    ],
)
def test_file_is_refused_when_it_has_no_frames(prompts: PromptFactory, file: bytes) -> None:
    with pytest.raises(InvalidArgument) as raised:
        look(prompts, file)
    assert raised.value.field == "video.0"


def test_video_is_refused_by_its_header_when_it_has_very_many_frames(
    prompts: PromptFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = mp4(2, 1.0)
    at = file.index(b"stsz") + 12
    many = file[:at] + (1 << 31).to_bytes(4, "big") + file[at + 4 :]
    monkeypatch.setattr(cv2, "VideoCapture", None)
    with pytest.raises(InvalidArgument, match="frames; the maximum is") as raised:
        look(prompts, many)
    assert raised.value.field == "video.0"


def test_playlist_is_not_followed(prompts: PromptFactory) -> None:
    conversation_of: Any = conversation(("user", mp4(2, 1.0)))
    playlist = np.frombuffer(b"#EXTM3U\nhttp://127.0.0.1:1/a.ts\n", np.uint8)

    with pytest.raises(InvalidArgument, match="is not an MP4"):
        prompts.prepare(msgspec.structs.replace(conversation_of, videos=(playlist,)), speaks=False)


def test_sight_is_refused_when_time_falls_between_positions(
    small_dir: Path, tmp_path: Path
) -> None:

    other = tmp_path / "checkpoint"
    shutil.copytree(small_dir, other)
    config = json.loads((other / "config.json").read_text())
    config["thinker_config"]["position_id_per_seconds"] = 12.5
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(FailedPrecondition, match="video: 0"):
        load_vision(other, Qwen3OmniMoeProcessorKwargs, max_images=1, max_videos=1)
    assert (
        load_vision(other, Qwen3OmniMoeProcessorKwargs, max_images=1, max_videos=0).max_images == 1
    )


READ = """
import sys
import numpy as np
from antiphon_services.thinker.video import measure_video
from antiphon_services.thinker.vision import FramePace, Sizes
from antiphon.errors import InvalidArgument
file = np.frombuffer(sys.stdin.buffer.read(), np.uint8)
try:
    measure_video(Sizes(32, 1, 1 << 20), FramePace(2, 1), file, "video.0").pixels()
except InvalidArgument as error:
    print(error)
"""


def test_what_ffmpeg_says_of_a_damaged_video_is_not_written() -> None:
    file = bytearray(mp4(30, 10.0))
    for at in range(file.index(b"mdat") + 60, file.index(b"moov") - 8, 200):
        file[at] ^= 0x5A
    command = [sys.executable, "-c", READ]
    reader = subprocess.run(command, input=bytes(file), capture_output=True, check=True)
    # OpenCV writes to either, as its log level comes by default or by the environment.
    assert b"[OPENCV:FFMPEG" not in reader.stdout
    assert b"[mpeg4" not in reader.stderr
