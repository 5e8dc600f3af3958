"""Weights in a folder within the checkpoint, and in files that torch saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from antiphon.errors import FailedPrecondition
from antiphon.runtime.checkpoint.fingerprint import MAX_FOLDERS, fingerprint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights

INNER = "speech_tokenizer"
# Of the checkpoint that `outer` makes.
OUTER_FINGERPRINT = "1209769f48e7833eb6db5da2c3452524"


@pytest.fixture
def outer(tmp_path: Path) -> Path:
    """A checkpoint of one tensor."""
    directory = tmp_path / "outer"
    directory.mkdir()
    (directory / "config.json").write_text('{"architectures": ["Fixed"]}')
    entry = {"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}
    header = json.dumps(entry).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(range(4))
    (directory / "model.safetensors").write_bytes(content)
    return directory


@pytest.fixture
def nested(outer: Path) -> Path:
    """The same, with a folder that has its own configuration and weights."""
    folder = outer / INNER
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"w": torch.arange(6.0), "weight": torch.ones(2, 3)}, folder / "model.safetensors")
    return outer


def test_folder_within_has_weights_of_its_own(nested: Path) -> None:
    assert Weights(nested).read("w").tolist() == [0, 1, 2, 3]
    inner = Weights(nested / INNER)
    assert inner.read("w").tolist() == [0, 1, 2, 3, 4, 5]
    assert inner.has("weight")
    assert not Weights(nested).has("weight")


def test_module_is_made_of_a_folders_weights(nested: Path) -> None:
    save_file({"weight": torch.ones(3, 2)}, nested / INNER / "model.safetensors")
    weights = Weights(nested / INNER)
    made = load_submodule(Layer, 2, "", weights, dtype=torch.float32, device="cpu")
    assert made.weight.tolist() == [[1.0, 1.0]] * 3


class Layer(torch.nn.Linear):
    """As transformers' modules, made of one value."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 3, bias=False)


def test_weights_are_read_when_torch_saved_them(tmp_path: Path) -> None:
    torch.save({"a.w": torch.arange(3), "b": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    weights = Weights(tmp_path)
    assert set(weights.files) == {"a.w", "b"}
    assert weights.read("a.w").tolist() == [0, 1, 2]
    with pytest.raises(FailedPrecondition, match="has no tensor c"):
        weights.read("c")


def test_weights_are_read_when_torch_saved_them_in_parts(tmp_path: Path) -> None:
    parts = {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}
    for number, (name, file) in enumerate(parts.items()):
        torch.save({name: torch.tensor([number])}, tmp_path / file)
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": parts}))
    weights = Weights(tmp_path)
    assert [weights.read(name).tolist() for name in parts] == [[0], [1]]
    index.write_text(json.dumps({"weight_map": parts | {"c": "pytorch_model-2.bin"}}))
    with pytest.raises(FailedPrecondition, match=r"pytorch_model-2\.bin: can't read c"):
        Weights(tmp_path).read("c")


def test_safetensors_come_before_what_torch_saved(nested: Path) -> None:
    torch.save({"w": torch.zeros(1)}, nested / "pytorch_model.bin")
    assert Weights(nested).read("w").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("file", ["../outer.safetensors", "a/b.safetensors", "/dev/zero", 5])
def test_index_is_refused_when_it_names_a_file_elsewhere(outer: Path, file: object) -> None:
    index = outer / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": file}}))
    with pytest.raises(FailedPrecondition, match=r"index\.json: its tensors can't be listed"):
        Weights(outer)


def test_fingerprint_is_what_it_was_when_all_is_in_one_folder(outer: Path) -> None:
    (outer / "docs").mkdir()
    (outer / "docs" / "config.json").write_text("of a folder without weights")
    (outer / ".cache").mkdir()
    (outer / ".cache" / "model.safetensors").write_bytes(b"of nobody")
    assert fingerprint(outer) == OUTER_FINGERPRINT


CHANGES: dict[str, Callable[[Path], object]] = {
    "weights within": lambda path: save_file(
        {"w": torch.arange(6.0), "weight": torch.zeros(2, 3)}, path / INNER / "model.safetensors"
    ),
    "configuration within": lambda path: (path / INNER / "config.json").write_text("[]"),
    "another name": lambda path: (path / INNER).rename(path / "other"),
    "a file of torch's": lambda path: torch.save({"a": 1}, path / "voices.pt"),
    "one within": lambda path: torch.save({"a": 1}, path / INNER / "pytorch_model.bin"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_fingerprint_covers_folders_and_files_of_torchs(nested: Path, change: str) -> None:
    before = fingerprint(nested)
    assert before != OUTER_FINGERPRINT
    CHANGES[change](nested)
    assert fingerprint(nested) != before


def test_fingerprint_sees_every_byte_of_a_small_file_of_torchs(outer: Path) -> None:
    (outer / "voices.pt").write_bytes(bytes(200_000))
    before = fingerprint(outer)
    (outer / "voices.pt").write_bytes(bytes(100_000) + b"\x01" + bytes(99_999))
    assert fingerprint(outer) != before


def test_fingerprint_is_of_a_checkpoint_that_torch_saved(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save({"a": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    assert fingerprint(tmp_path)


def test_fingerprint_fails_when_the_directory_holds_very_many_folders(outer: Path) -> None:
    for number in range(MAX_FOLDERS):
        (outer / str(number)).mkdir()
    with pytest.raises(FailedPrecondition, match="more than 64 folders"):
        fingerprint(outer)
