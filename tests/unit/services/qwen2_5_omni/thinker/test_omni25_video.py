"""Videos in Qwen2.5-Omni's thinker on torch: patches, positions and rows as Hugging Face's."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from antiphon.pipelines.qwen2_5_omni import PROMPT
from antiphon_services.thinker.engine import ThinkerEngine
from antiphon_services.thinker.vision import Visual
from antiphon_services.thinker.vision_loading import load_patch_maker
from antiphon_testkit.conversations import conversation
from antiphon_testkit.drive_engine import run_segment
from antiphon_testkit.qwen2_5_omni.reference import Omni25Reference
from tests.unit.services.qwen2_5_omni.thinker.omni25_thinker_lab import (
    answer,
    assert_equal,
    picture,
    png,
    recording,
    segment,
)

cv2 = pytest.importorskip("cv2")

# The processor has nothing to resize: whether torchvision or Pillow does it matters.
EXACT = picture(112, 84)


def mp4(frames: int, rate: float, seed: int = 0) -> bytes:
    """Frames that differ, at so many a second."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "clip.mp4"
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), rate, (96, 64))
        for at in range(frames):
            writer.write(picture(96, 64, 100 * seed + at))
        writer.release()
        return path.read_bytes()


def seen(engine: ThinkerEngine, file: bytes) -> Visual:
    """A video as the engine measures it."""
    vision = engine.intake.prompts.vision
    assert vision is not None
    return vision.videos(np.frombuffer(file, np.uint8), "video.0")


def test_facts_say_that_videos_are_taken(engine: ThinkerEngine) -> None:
    assert engine.intake.prompts.vision is not None
    assert engine.intake.prompts.vision.max_videos == 8


def test_patches_equal_the_processors(
    omni25_directory: Path, engine: ThinkerEngine, reference: Omni25Reference
) -> None:
    """Of an odd number of frames, too."""
    for count in (4, 5):
        visual = seen(engine, mp4(count, 2.0))
        frames = np.asarray(visual.pixels())
        assert len(frames) == count - count % 2
        for kept in (frames, frames[:3]):
            made = load_patch_maker(omni25_directory)._cut(kept)
            wanted = reference.inputs(conversation(("user", "")), (), (kept,))
            assert [list(made[1])] == wanted["video_grid_thw"].tolist()
            theirs = wanted["thinker_pixel_values_videos"].numpy()
            np.testing.assert_allclose(made[0], theirs, rtol=0, atol=1e-6)


def test_ids_and_rows_equal_generate(engine: ThinkerEngine, reference: Omni25Reference) -> None:
    """Times are 25 positions apart, so positions behind a video are others than in the slot."""
    files = mp4(6, 2.0), mp4(4, 1.0, seed=1)
    asked = conversation(
        ("user", ["See", files[0], "hear", recording(0.7, 3), png(EXACT)]),
        ("assistant", "I do."),
        ("user", [files[1], "again"]),
    )
    videos = tuple(np.asarray(seen(engine, each).pixels()) for each in files)
    wanted = answer(reference, asked, (EXACT,), videos=videos)
    out = run_segment(engine, *segment(asked))
    assert_equal(out, wanted)
    tensors = out.tensors(PROMPT)
    assert tensors["steps"].tolist() == [25, 1, 25]
    assert tensors["grids"][:, 0].tolist() == [3, 1, 2]
    again = run_segment(engine, *segment(asked))
    assert again.completed is not None
    assert again.completed.input_cached_positions == len(wanted.truth.prompt_ids) - 1
    assert_equal(again, wanted)
