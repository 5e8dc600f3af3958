"""Families of other distributions are found; one that is broken concerns those who ask for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.errors import FailedPrecondition, NotFound
from antiphon.pipelines.registry import own_pipelines, pipeline_named, pipeline_of

DECLARATION = """
from antiphon.pipelines.graph import CLIENT, Edge, Pipeline, StageSpec, TensorSpec

IDS = (TensorSpec("ids", "int32", (-1,)),)
PIPELINE = Pipeline(
    "{pipeline}",
    ("{architecture}",),
    (StageSpec("singer"),),
    (
        Edge("input", CLIENT, ("singer",), "step", IDS, "ids"),
        Edge("audio", "singer", (CLIENT,), "step", IDS, "{counted_by}"),
    ),
    folder="{module}.stages",
    marker="{marker}",
    needs={needs},
)
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution with one module, which declares `pipeline` under `entry`."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(
        module: str,
        *,
        pipeline: str = "duet",
        entry: str = "duet",
        architecture: str = "Duet",
        attribute: str = "PIPELINE",
        counted_by: str = "ids",
        marker: str = "",
        needs: tuple[str, ...] = (),
        code: str = DECLARATION,
    ) -> None:
        filled = code.format(
            pipeline=pipeline,
            architecture=architecture,
            counted_by=counted_by,
            marker=marker,
            needs=needs,
            module=module,
        )
        (tmp_path / f"{module}.py").write_text(filled)
        facts = tmp_path / f"{module}-0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 0\n")
        points = f"[antiphon.pipelines]\n{entry} = {module}:{attribute}\n"
        (facts / "entry_points.txt").write_text(points)

    return install


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[[str], Path]:
    """A directory that says which architecture it has, and nothing else."""

    def checkpoint(architecture: str) -> Path:
        directory = tmp_path / "model"
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps({"architectures": [architecture]}))
        return directory

    return checkpoint


def test_pipeline_of_another_distribution_is_found_by_name_and_by_architecture(
    install: Install, checkpoint: Callable[[str], Path]
) -> None:
    install("found_family")
    assert pipeline_named("duet") is pipeline_of(checkpoint("Duet"))
    assert pipeline_named("duet").package == "found_family.stages"
    assert "duet" not in own_pipelines()


def test_unknown_pipeline_is_refused_with_those_that_there_are(install: Install) -> None:
    install("known_family")
    known = ", ".join(sorted([*own_pipelines(), "duet"]))
    with pytest.raises(NotFound, match=f"^unknown pipeline 'solo'; use one of: {known}$"):
        pipeline_named("solo")


BROKEN: dict[str, tuple[dict[str, str], str]] = {
    "its module raises": ({"code": "import nowhere_at_all"}, "No module named 'nowhere_at_all'"),
    "its module is not there": ({"attribute": "PIPELINE", "code": "]"}, "SyntaxError"),
    "it has no such name": ({"attribute": "PIPE"}, "has no attribute 'PIPE'"),
    "it is something else": ({"attribute": "IDS"}, "it is a tuple instead of a Pipeline"),
    "it is declared wrongly": ({"counted_by": "id"}, "edges.audio.counted_by: unknown tensor"),
    "it has another name": (
        {"pipeline": "trio"},
        "its name is trio, but the entry point's is duet",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_entry_point_that_cannot_be_used_is_an_error_for_those_who_ask_for_it(
    install: Install, checkpoint: Callable[[str], Path], case: str
) -> None:
    fields, reason = BROKEN[case]
    module = f"broken_{list(BROKEN).index(case)}_family"
    install(module, **fields)
    for name, pipeline in own_pipelines().items():
        assert pipeline_named(name) is pipeline
    named = re.escape(f"{module} ({module}:{fields.get('attribute', 'PIPELINE')}) can't be used: ")
    pattern = f"{named}.*{re.escape(reason)}"
    with pytest.raises(FailedPrecondition, match=f"^pipeline duet: {pattern}"):
        pipeline_named("duet")
    with pytest.raises(FailedPrecondition, match=pattern):
        pipeline_of(checkpoint("Duet"))


def test_two_pipelines_of_one_name_are_refused_with_both_places(
    install: Install, checkpoint: Callable[[str], Path]
) -> None:
    install("first_family", architecture="First")
    install("second_family", architecture="Second")
    with pytest.raises(FailedPrecondition, match=r"^two .* name duet: ") as refused:
        pipeline_named("duet")
    assert "first_family (" in refused.value.message
    assert "second_family (" in refused.value.message


def test_pipeline_that_takes_the_name_of_an_own_one_is_refused(install: Install) -> None:
    taken = next(iter(own_pipelines()))
    install("taking_family", pipeline=taken, entry=taken)
    with pytest.raises(FailedPrecondition, match=f"antiphon.pipelines.{taken} and .*taking_family"):
        pipeline_named(taken)


def test_two_pipelines_that_claim_one_architecture_are_refused_with_both_names(
    install: Install, checkpoint: Callable[[str], Path]
) -> None:
    install("left_family", pipeline="left", entry="left")
    install("right_family", pipeline="right", entry="right")
    with pytest.raises(
        FailedPrecondition, match=r"left of left_family .*right of right_family"
    ) as e:
        pipeline_of(checkpoint("Duet"))
    assert e.value.field == "pipeline"
    assert pipeline_named("left").name == "left"


def test_checkpoint_is_known_by_the_file_that_marks_its_family(
    install: Install, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    install("marked_family", marker="duet.yaml")
    directory = tmp_path / "marked"
    directory.mkdir()
    with pytest.raises(NotFound, match=r"not a checkpoint directory: config\.json is missing"):
        pipeline_of(directory)
    (directory / "duet.yaml").write_text("")
    assert pipeline_of(directory) is pipeline_named("duet")
    # Such a checkpoint may have a configuration that says nothing.
    (directory / "config.json").write_text("{}")
    assert pipeline_of(directory) is pipeline_named("duet")
    assert pipeline_of(checkpoint("Duet")) is pipeline_named("duet")


def test_two_pipelines_with_one_marker_are_refused_with_both_names(
    install: Install, tmp_path: Path
) -> None:
    install("left_marked_family", pipeline="left", entry="left", marker="song.yaml")
    install("right_marked_family", pipeline="right", entry="right", marker="song.yaml")
    (tmp_path / "song.yaml").write_text("")
    with pytest.raises(FailedPrecondition, match=r"two pipelines support its files: .*left.*right"):
        pipeline_of(tmp_path)


def test_weights_decide_between_two_pipelines_of_one_architecture(
    install: Install, checkpoint: Callable[[str], Path]
) -> None:
    """As with Ming-flash-omni, whose talker can be served without the thinker's weights."""
    install("whole_family", pipeline="whole", entry="whole", needs=("one.bin", "two.bin"))
    directory = checkpoint("Duet")
    assert pipeline_of(directory) is pipeline_named("whole")
    install("part_family", pipeline="part", entry="part")
    assert pipeline_of(directory) is pipeline_named("part")
    (directory / "two.bin").write_bytes(b"")
    assert pipeline_of(directory) is pipeline_named("whole")
    assert pipeline_of(directory, by_weights=False) is pipeline_named("part")
    install("other_family", pipeline="other", entry="other", needs=("two.bin",))
    with pytest.raises(FailedPrecondition, match="two pipelines support"):
        pipeline_of(directory)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
INDEX = b'{"weight_map": {"a": "2.safetensors", "b": "1.safetensors"}}'


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        ({"all.index.json": INDEX}, "part"),
        ({"all.index.json": INDEX, "2.safetensors": b"shard"}, "part"),
        ({"all.index.json": INDEX, "1.safetensors": POINTER}, "part"),
        ({"all.index.json": POINTER, "1.safetensors": b"shard"}, "part"),
        ({"all.safetensors": POINTER}, "part"),
        ({"all.index.json": INDEX, "1.safetensors": b"shard"}, "whole"),
        ({"all.safetensors": b"weights"}, "whole"),
        # Loading names the fault.
        ({"all.index.json": b"{"}, "whole"),
        ({"all.index.json": b'{"weight_map": {}}'}, "whole"),
        ({"all.index.json": b'{"weight_map": {"a": 1}}'}, "whole"),
    ],
)
def test_weights_that_were_not_downloaded_do_not_decide(
    files: dict[str, bytes], chosen: str, install: Install, checkpoint: Callable[[str], Path]
) -> None:
    """A clone without Git LFS has the index of the weights, and pointers to them."""
    needs = "all.index.json", "all.safetensors"
    install("sharded_family", pipeline="whole", entry="whole", needs=needs)
    install("light_family", pipeline="part", entry="part")
    directory = checkpoint("Duet")
    for name, content in files.items():
        (directory / name).write_bytes(content)
    assert pipeline_of(directory) is pipeline_named(chosen)
