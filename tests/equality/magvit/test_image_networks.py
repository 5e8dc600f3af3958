"""MAGVITv2's networks draw and read as the vendor's code does."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.values.chunk import Tensor
from antiphon_services.magvit.image_decoder import ImageDecoder, load_image_decoder, side_of
from antiphon_services.magvit.image_sizes import (
    IMAGE_ENTRIES,
    MOST_SIDE_TOKENS,
    image_weights,
)
from antiphon_services.magvit.image_tokenizer import ImageTokenizer, load_image_tokenizer
from antiphon_services.magvit.square_pixels import MOST_RATIO, png_file, square_pixels
from antiphon_testkit.magvit.tiny_image_tokenizer import SCALE, write_tiny_image_tokenizer
from tests.equality.magvit.magvit_cases import (
    DRAWN_CASES,
    SEED,
    SEEN_CASES,
    SIDE,
    DrawnCase,
    SeenCase,
)

pytestmark = pytest.mark.equality

TOLERANCE = 1e-4
FILE = "pytorch_model.safetensors"
CPU = {"dtype": torch.float32, "device": torch.device("cpu")}


@pytest.fixture(scope="module")
def recorded() -> dict[str, Tensor]:
    """What the vendor's code made, by case and name."""
    with np.load(Path(__file__).parent / "recorded.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """Those of a tiny MAGVITv2."""
    folder = tmp_path_factory.mktemp("magvit") / "magvitv2"
    write_tiny_image_tokenizer(folder, SEED)
    return image_weights(folder)


@pytest.fixture(scope="module")
def decoder(weights: Weights) -> ImageDecoder:
    """The decoder."""
    return load_image_decoder(weights, **CPU)


@pytest.fixture(scope="module")
def tokenizer(weights: Weights) -> ImageTokenizer:
    """The encoder."""
    return load_image_tokenizer(weights, **CPU)


@pytest.mark.parametrize("case", DRAWN_CASES, ids=lambda case: case.name)
def test_an_image_is_drawn_as_recorded(
    case: DrawnCase, decoder: ImageDecoder, recorded: dict[str, Tensor]
) -> None:
    expected = recorded[f"{case.name}/values"]
    made = decoder.values(case.ids).numpy()
    assert made.shape == (3, SCALE * case.side, SCALE * case.side)
    assert np.abs(made - expected).max() < TOLERANCE
    exact = np.clip((expected + 1) / 2, 0, 1) * 255
    near = np.abs(exact - exact.round()) < 256 * TOLERANCE
    pixels = decoder.pixels(case.ids).transpose(2, 0, 1)
    assert pixels.dtype == np.uint8
    # A value at the edge of two may be rounded to either.
    np.testing.assert_array_equal(pixels[~near], exact.astype(np.uint8)[~near])
    assert np.abs(pixels - np.floor(exact))[near].max(initial=0) <= 1


@pytest.mark.parametrize("case", SEEN_CASES, ids=lambda case: case.name)
def test_an_image_is_read_as_recorded(
    case: SeenCase, tokenizer: ImageTokenizer, recorded: dict[str, Tensor]
) -> None:
    ids = tokenizer.ids(square_pixels(Image.fromarray(case.pixels), SIDE))
    assert ids.dtype == np.uint16
    clear = recorded[f"{case.name}/clear"]
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(ids[clear], recorded[f"{case.name}/ids"][clear])


def test_the_largest_image_is_drawn_and_read(
    decoder: ImageDecoder, tokenizer: ImageTokenizer
) -> None:
    pixels = decoder.pixels(np.arange(MOST_SIDE_TOKENS**2, dtype=np.uint16))
    assert pixels.shape == (MOST_SIDE_TOKENS * SCALE, MOST_SIDE_TOKENS * SCALE, 3)
    ids = tokenizer.ids(pixels)
    assert len(ids) == MOST_SIDE_TOKENS**2
    assert ids.max() < IMAGE_ENTRIES


@pytest.mark.parametrize("count", [0, 2, 24, (MOST_SIDE_TOKENS + 1) ** 2])
def test_tokens_that_make_no_square_are_refused(count: int, decoder: ImageDecoder) -> None:
    with pytest.raises(InvalidArgument, match=f"{count} image tokens don't form a square image"):
        decoder.pixels(np.zeros(count, np.uint16))


def test_squares_have_sides() -> None:
    assert [side_of(each) for each in (1, 4, 441, 1024)] == [1, 2, 21, 32]


@pytest.mark.parametrize("shape", [(0, 0, 3), (6, 6, 3), (8, 12, 3), (8, 8, 4), (132, 132, 3)])
def test_pixels_of_another_shape_are_refused(
    shape: tuple[int, ...], tokenizer: ImageTokenizer
) -> None:
    with pytest.raises(InvalidArgument, match="a side of 4 to 128 pixels in steps of 4"):
        tokenizer.ids(np.zeros(shape, np.uint8))


def test_thin_images_are_refused_before_they_are_scaled() -> None:
    for size in ((MOST_RATIO * 3, 3), (3, MOST_RATIO * 3)):
        assert square_pixels(Image.new("RGB", size), SIDE).shape == (SIDE, SIDE, 3)
        thin = tuple(each + (each > 3) for each in size)
        with pytest.raises(InvalidArgument, match="too narrow"):
            square_pixels(Image.new("RGB", thin), SIDE)


def test_png_files_have_the_pixels() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (6, 9, 3)).astype(np.uint8)
    with Image.open(io.BytesIO(png_file(pixels))) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        np.testing.assert_array_equal(np.asarray(image), pixels)


def replaced(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Weights:
    """A tiny MAGVITv2 with other tensors."""
    write_tiny_image_tokenizer(folder, SEED)
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE, {"format": "pt"})
    return image_weights(folder)


def test_checkpoints_that_lack_something_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"missing: decoder\.mid\.attn_1\.q\.bias"):
        load_image_decoder(
            replaced(tmp_path / "a", lambda all_: all_.pop("decoder.mid.attn_1.q.bias")), **CPU
        )
    with pytest.raises(FailedPrecondition, match=r"missing: encoder\.conv_out\.weight"):
        load_image_tokenizer(
            replaced(tmp_path / "b", lambda all_: all_.pop("encoder.conv_out.weight")), **CPU
        )

    def keep_none(tensors: dict[str, torch.Tensor]) -> None:
        for name in [each for each in tensors if ".block." in each]:
            del tensors[name]

    with pytest.raises(FailedPrecondition, match="don't belong to a MAGVITv2"):
        load_image_decoder(replaced(tmp_path / "c", keep_none), **CPU)
    with pytest.raises(FailedPrecondition, match="is missing"):
        image_weights(tmp_path)


def test_weights_of_torch_are_read_too(tmp_path: Path, weights: Weights) -> None:
    tensors = load_file(weights.folder / FILE)
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    case = DRAWN_CASES[0]
    made = load_image_decoder(image_weights(tmp_path), **CPU).values(case.ids)
    assert torch.equal(made, load_image_decoder(weights, **CPU).values(case.ids))
