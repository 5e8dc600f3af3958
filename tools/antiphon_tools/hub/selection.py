"""Selects the files in a repository that a pipeline's stages read.

The functions in this module have no side effects.
"""

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
"""The names of configuration and tokenizer files."""

ReadIndex = Callable[[str], Collection[str]]
"""Returns the names of the files that a weight index lists, given the index's path."""


def layout_of(pipeline: Pipeline, paths: Collection[str]) -> CheckpointFiles:
    """Return the first layout of the pipeline that matches a repository with these paths."""
    return next(
        (each for each in pipeline.files if not each.marker or each.marker in paths),
        CheckpointFiles(),
    )


def description_files(layout: CheckpointFiles, paths: Collection[str]) -> list[str]:
    """Return the files that describe the weights, including weight indexes."""
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
    """Return the weight files in each folder and the layout's other files.

    The weights are in the first format that `Weights` can read. Raises `FailedPrecondition` if
    there are no weights or if an index lists a file that does not exist.
    """
    found = {path for path in paths if any(fnmatch(path, each) for each in layout.others)}
    for folder in layout.folders:
        found |= set(_weights(folder, paths, read_index))
    if not found:
        raise FailedPrecondition("the repository has no weights in a supported format")
    return sorted(found)


def _weights(folder: str, paths: Collection[str], read_index: ReadIndex) -> Iterator[str]:
    for index, single in FORMATS:
        if (path := _join(folder, index)) in paths:
            for name in read_index(path):
                if (listed := _join(folder, name)) not in paths:
                    raise FailedPrecondition(
                        f"{path}: refers to {name}, which is not in the repository"
                    )
                yield listed
            return
        if (path := _join(folder, single)) in paths:
            yield path
            return


def _index(folder: str, paths: Collection[str]) -> str:
    """Return the index of the weights, or an empty string if they are in a single file."""
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
