"""Files that torch saved: read as they are, or refused before anything of them runs."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.errors import FailedPrecondition
from antiphon.runtime.checkpoint import torch_files
from antiphon.runtime.checkpoint.torch_files import read_torch_file
from antiphon.runtime.checkpoint.weights import StoredSize, Weights

VOICES = {
    "Chelsie": {"bos_token": 151_672, "cond": torch.ones(1, 192), "ref_mel": torch.zeros(1, 5, 80)}
}


class MakesFolder:
    """Whoever unpickles this without care makes the folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def save(path: Path, content: object) -> None:
    torch.save(content, path)


def save_as_before_zip(path: Path, content: object) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


def pickle_alone(path: Path, content: object) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))


@pytest.mark.parametrize("write", [save, save_as_before_zip])
def test_voices_are_read(tmp_path: Path, write: Callable[[Path, object], None]) -> None:
    write(tmp_path / "spk_dict.pt", VOICES)
    voice = read_torch_file(tmp_path / "spk_dict.pt")["Chelsie"]
    assert voice["bos_token"] == 151_672
    assert torch.equal(voice["cond"], VOICES["Chelsie"]["cond"])  # type: ignore[arg-type]
    assert voice["ref_mel"].shape == (1, 5, 80)


def test_tensors_are_mapped_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    save(path, {"w": torch.ones(1 << 20)})
    kept = read_torch_file(path)
    assert str(path) in Path("/proc/self/maps").read_text()
    assert kept["w"].sum() == 1 << 20


@pytest.mark.parametrize("write", [save, save_as_before_zip, pickle_alone])
def test_file_is_refused_and_not_run_when_it_is_code(
    tmp_path: Path, write: Callable[[Path, object], None]
) -> None:
    path, made = tmp_path / "spk_dict.pt", tmp_path / "made"
    write(path, VOICES | {"Ethan": MakesFolder(made)})
    with pytest.raises(FailedPrecondition, match=r"spk_dict\.pt: .*; get the file") as refused:
        read_torch_file(path)
    assert "weights_only" not in refused.value.message
    assert not made.exists()
    # It does what it is made for where nobody looks.
    if write is pickle_alone:
        pickle.loads(path.read_bytes())
    else:
        torch.load(path, weights_only=False)
    assert made.is_dir()


def test_refusal_names_what_the_file_would_call(tmp_path: Path) -> None:
    save(tmp_path / "voices.pt", MakesFolder(tmp_path / "made"))
    with pytest.raises(FailedPrecondition, match=r"might execute code: it calls posix\.mkdir; get"):
        read_torch_file(tmp_path / "voices.pt")


def test_weights_are_refused_and_not_run_when_they_are_code(tmp_path: Path) -> None:
    made, file = tmp_path / "made", tmp_path / "pytorch_model.bin"
    save(file, {"w": torch.ones(1), "v": MakesFolder(made)})
    with pytest.raises(FailedPrecondition, match=r"pytorch_model\.bin: .* might execute code"):
        Weights(tmp_path)
    index = {"weight_map": {"w": file.name}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(FailedPrecondition, match=r"pytorch_model\.bin: .* might execute code"):
        Weights(tmp_path).read("w")
    assert not made.exists()


@pytest.mark.parametrize("content", [VOICES, [torch.ones(1)], {1: torch.ones(1)}, torch.ones(1)])
def test_weights_are_refused_when_they_are_no_tensors_by_name(
    tmp_path: Path, content: object
) -> None:
    save(tmp_path / "pytorch_model.bin", content)
    with pytest.raises(FailedPrecondition, match="must contain a dictionary"):
        Weights(tmp_path)


def compress(path: Path) -> None:
    """The same records, deflated: a few bytes may say that they are very many."""
    plain = path.with_suffix(".plain")
    shutil.move(path, plain)
    with zipfile.ZipFile(plain) as there, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as here:
        for record in there.namelist():
            here.writestr(record, there.read(record))


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


BREAK: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: cut(path, 0),
    "cut in its middle": lambda path: cut(path, path.stat().st_size // 2),
    "cut at its end": lambda path: cut(path, path.stat().st_size - 30),
    "words": lambda path: path.write_text("<html>not found</html>"),
    "without a pickle": lambda path: zipfile.ZipFile(path, "w").close(),
    "compressed": compress,
}


@pytest.mark.parametrize("fault", BREAK)
def test_file_is_refused_when_it_is_broken(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "spk_dict.pt"
    save(path, VOICES)
    BREAK[fault](path)
    with pytest.raises(FailedPrecondition, match=r"spk_dict\.pt.*; get the file"):
        read_torch_file(path)


@pytest.mark.parametrize("left", range(1, 900, 97))
def test_file_is_read_or_refused_when_a_byte_of_it_is_another(tmp_path: Path, left: int) -> None:
    """No other error comes of it."""
    path = tmp_path / "spk_dict.pt"
    save(path, VOICES)
    content = bytearray(path.read_bytes())
    at = content.index(b"Chelsie") - 20 + left % 400
    content[at] ^= left % 255 + 1
    path.write_bytes(content)
    with contextlib.suppress(FailedPrecondition):
        read_torch_file(path)


def test_file_is_refused_when_its_pickle_is_very_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "voices.pt", VOICES)
    monkeypatch.setattr(torch_files, "MAX_PICKLE_BYTES", 100)
    with pytest.raises(FailedPrecondition, match=r"its data\.pkl has \d+ bytes"):
        read_torch_file(tmp_path / "voices.pt")


def test_weights_of_one_file_leave_the_others_alone(tmp_path: Path) -> None:
    save(tmp_path / "llm.pt", {"w": torch.ones(2)})
    save(tmp_path / "flow.pt", {"w": torch.zeros(3), "v": torch.ones(1)})
    (tmp_path / "broken.pt").write_bytes(b"")
    flow = Weights(tmp_path, "flow.pt")
    assert set(flow.files) == {"w", "v"}
    assert flow.read("w").tolist() == [0.0, 0.0, 0.0]
    assert Weights(tmp_path, "llm.pt").sizes("") == {"float32": StoredSize(2, 8)}
    with pytest.raises(FailedPrecondition, match=r"hift\.pt"):
        Weights(tmp_path, "hift.pt")
