from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.qwen2_5_omni import VOICES_FILE
from antiphon_services.qwen2_5_omni.token2wav.voices import read_voices

GOOD = {"bos_token": 7, "cond": torch.zeros(1, 4), "ref_mel": torch.zeros(1, 5, 80)}


class Hostile:
    """A pickle of this asks its reader to make a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (self.path,)


def read(directory: Path, content: Any) -> Any:
    torch.save(content, directory / VOICES_FILE)
    return read_voices(directory, condition_width=4, mel_width=80)


def test_voices_keep_the_files_order_when_read(tmp_path: Path) -> None:
    half = {"bos_token": 8, "cond": torch.ones(1, 4).half(), "ref_mel": torch.ones(1, 2, 80)}
    voices = read(tmp_path, {"Zoe": GOOD, "Adam": half})
    assert list(voices) == ["Zoe", "Adam"]
    assert voices["Adam"].condition.dtype == torch.float32


def test_hostile_voices_are_refused_and_not_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(FailedPrecondition, match=r"spk_dict\.pt: was rejected"):
        read(tmp_path, {"Zoe": GOOD | {"cond": Hostile(made)}})
    assert not made.exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "no voices"),
        ([GOOD], "no voices"),
        ({"Zoe": {"cond": GOOD["cond"]}}, "ref_mel"),
        ({"Zoe": GOOD | {"cond": torch.zeros(4)}}, r"cond must have .*, got \[4\]"),
        ({"Zoe": GOOD | {"ref_mel": torch.zeros(1, 0, 80)}}, "ref_mel must have"),
        ({"Zoe": GOOD | {"ref_mel": torch.zeros(1, 3, 79)}}, "ref_mel must have"),
        ({"Zoe": GOOD | {"cond": torch.full((1, 4), torch.nan)}}, "not finite"),
    ],
)
def test_voices_are_refused_when_a_tensor_is_wrong(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(FailedPrecondition, match=said):
        read(tmp_path, content)


def test_voices_are_refused_when_the_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"spk_dict\.pt is missing"):
        read_voices(tmp_path, condition_width=4, mel_width=80)
