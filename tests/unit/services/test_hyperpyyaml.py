"""A file of HyperPyYAML is data: nothing that it names is imported or called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import FailedPrecondition
from antiphon_services.stage.hyperpyyaml import read_hyperpyyaml
from antiphon_testkit.cosyvoice3.tiny_config import model_yaml
from antiphon_testkit.cosyvoice3.tiny_shape import VOICES


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    (path := tmp_path / "model.yaml").write_text(text)
    return read_hyperpyyaml(path)


def test_tags_are_names_and_references_are_values(tmp_path: Path) -> None:
    told = read(tmp_path, model_yaml(VOICES))
    assert told["llm"]["!new"] == "cosyvoice.llm.llm.CosyVoice3LM"
    assert told["llm"]["llm"]["pretrain_path"] == ""
    assert told["llm"]["sampling"]["!name"] == "cosyvoice.utils.common.ras_sampling"
    assert told["flow"]["decoder"]["estimator"]["static_chunk_size"] == 50
    assert told["hift"]["resblock_dilation_sizes"] == [[1, 3, 5]] * 3
    assert told["feat_extractor"]["fmax"] is None
    assert told["__set_seed1"] == {"!apply": "random.seed", "!arguments": [1986]}


def test_nothing_is_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    told = read(tmp_path, f"a: !apply:os.mkdir ['{ran}']\nb: !new:os.mkdir\n    path: {ran}\n")
    assert told["a"]["!apply"] == "os.mkdir"
    assert not ran.exists()


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.getcwd []\n",
        "a: !copy <b>\n",
        "[1, 2]\n",
        "a: [1\n",
        "a: x\nb: !ref <a> * <a>\n",
        "a: !new:b\n" + "# long\n" * 200_000,
    ],
)
def test_anything_else_is_refused_by_the_files_name(text: str, tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"model\.yaml"):
        read(tmp_path, text)


def test_reference_to_an_object_stays_its_text(tmp_path: Path) -> None:
    told = read(tmp_path, "a: !new:b\n    c: 1\nd: !ref <a>\ne: [!ref <a>, !ref <missing>]\n")
    assert told["d"] == "<a>"
    assert told["e"] == ["<a>", "<missing>"]
