"""Which of a repository's files the stages of a pipeline read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from fnmatch import fnmatch

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.graph import CheckpointFiles, Pipeline
from antiphon.runtime.checkpoint.fingerprint import DESCRIPTION_PATTERNS
from antiphon.runtime.checkpoint.weights import FORMATS

DESCRIPTIONS = (
    *DESCRIPTION_PATTERNS,
    "video_preprocessor_config.json",
    "tokenizer.model",
    "vocab.txt",
)
"""Names of configuration and tokenizer files."""

ReadIndex = Callable[[str], Collection[str]]
"""Takes the path of an index of weights, returns the names of the files that it lists."""


def layout_of(pipeline: Pipeline, paths: Collection[str]) -> CheckpointFiles:
    """The first layout of the pipeline that a repository with these paths has."""
    return next(
        (each for each in pipeline.files if not each.marker or each.marker in paths),
        CheckpointFiles(),
    )


def description_files(layout: CheckpointFiles, paths: Collection[str]) -> list[str]:
    """Files that describe the weights: small files, and the indexes of weights."""
    indexes = {_index(folder, paths) for folder in layout.folders}
    return sorted(
        path
        for path in paths
        if path in indexes
        or any(
            folder == _folder(path)
            and not path.endswith(".index.json")
            and any(fnmatch(_name(path), pattern) for pattern in DESCRIPTIONS)
            for folder in layout.folders
        )
    )


def weight_files(
    layout: CheckpointFiles, paths: Collection[str], read_index: ReadIndex
) -> list[str]:
    """The weights of each folder in the format that `Weights` reads, and the layout's other files.

    Raises `FailedPrecondition` if there are none, or an index lists a file that is not there.
    """
    found = {path for path in paths if any(fnmatch(path, each) for each in layout.others)}
    for folder in layout.folders:
        found |= set(_weights(folder, paths, read_index))
    if not found:
        raise FailedPrecondition("the repository has no weights that antiphon reads")
    return sorted(found)


def _weights(folder: str, paths: Collection[str], read_index: ReadIndex) -> Iterator[str]:
    for index, single in FORMATS:
        if (path := _join(folder, index)) in paths:
            for name in read_index(path):
                if (listed := _join(folder, name)) not in paths:
                    raise FailedPrecondition(f"{path}: lists {name}, which the repository lacks")
                yield listed
            return
        if (path := _join(folder, single)) in paths:
            yield path
            return


def _index(folder: str, paths: Collection[str]) -> str:
    """The index of the weights that are read; empty if they are in one file."""
    for index, single in FORMATS:
        if (path := _join(folder, index)) in paths:
            return path
        if _join(folder, single) in paths:
            return ""
    return ""


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
