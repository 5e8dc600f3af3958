"""Downloads the files of a checkpoint that its stages need and makes sure that the checkpoint is
complete.

Files are processed in an order that reveals errors early. The first step is to determine the commit
and the list of its files. `config.json` then identifies the pipeline. The weights come last, after
all small files have been downloaded and the available disk space has been checked.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from antiphon.errors import (
    AntiphonError,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from antiphon.pipelines.files import CONFIG_FILE, reading
from antiphon.pipelines.graph import CheckpointFiles
from antiphon.pipelines.registry import identifying_files, pipeline_for
from antiphon_tools.hub.download import PARTIAL, Downloads, RemoteFile
from antiphon_tools.hub.errors import explained
from antiphon_tools.hub.hub_id import HubId
from antiphon_tools.hub.progress import TransferProgress, size
from antiphon_tools.hub.selection import description_files, layout_of, weight_files
from antiphon_tools.hub.settings import HubSettings

LISTING_TIMEOUT_S = 30.0
SPARE_BYTES = 64 << 20
"""The disk space that must remain free after a download."""

COMPANION_FILES = CheckpointFiles(others=("pytorch_model.safetensors",))
"""The files of a companion repository. This is the name that the diffusers library uses for
weights.
"""

FindLayout = Callable[[Path, Collection[str]], CheckpointFiles]
"""Returns a checkpoint's layout, given a directory with its identifying files and the paths of all
of its files.
"""


@dataclass(frozen=True, slots=True)
class _Commit:
    """The commit of a revision and its files by path."""

    sha: str
    files: Mapping[str, RemoteFile]


def fetch_checkpoint(model: HubId, settings: HubSettings, *, pipeline: str = "") -> Path:
    """Return the directory of a checkpoint with all files that its stages read.

    If `pipeline` is empty, the files that identify a checkpoint determine the pipeline, and not the
    weights that are in the cache. If the hub cannot be reached, a complete checkpoint in the cache
    is used. Before any weights are downloaded, the files that the pipeline requires are checked.
    Raises `NotFound`, `FailedPrecondition`,
    `ResourceExhausted`, `Unavailable` or `DataLoss`.
    """
    return _fetch(model, settings, _layout_for(pipeline, complete=True))


def fetch_companion(model: HubId, settings: HubSettings) -> Path:
    """Return the directory of a repository that has weights but no pipeline.

    An example is the repository of an audio tokenizer.
    """
    return _fetch(model, settings, lambda folder, paths: COMPANION_FILES)


def fetch_headers(model: HubId, settings: HubSettings, folder: Path, *, pipeline: str = "") -> Path:
    """Return a directory with the files that describe a checkpoint and the headers of its weights.

    The directory is `folder`. If the hub cannot be reached or is not used, it is a complete
    checkpoint in the cache. Headers can only be downloaded separately for safetensors files.
    Weights in other formats are only included if they are in the cache. Required files may be
    missing. Raises the same errors as `fetch_checkpoint`.
    """
    return _headers(model, settings, folder, _layout_for(pipeline, complete=False))


def fetch_companion_headers(model: HubId, settings: HubSettings, folder: Path) -> Path:
    """Return a directory of descriptions and headers for a repository that has no pipeline."""
    return _headers(model, settings, folder, lambda folder, paths: CheckpointFiles())


def _layout_for(pipeline: str, *, complete: bool) -> FindLayout:
    """Return a function that finds the layout of a checkpoint for the given pipeline.

    If `pipeline` is empty, the checkpoint determines it. If `complete` is true, the function raises
    `FailedPrecondition` if a required file is missing.
    """

    def find(folder: Path, paths: Collection[str]) -> CheckpointFiles:
        layout = layout_of(pipeline_for(folder, pipeline, by_weights=False), paths)
        if complete:
            layout.check_required(paths)
        return layout

    return find


def _headers(model: HubId, settings: HubSettings, folder: Path, layout: FindLayout) -> Path:
    if settings.is_offline:
        return _from_cache(model, settings, layout)
    found = _found_on_hub(model, settings, layout)
    if isinstance(found, Path):
        return found
    return _copy_headers(model, found, settings, layout, folder)


def _fetch(model: HubId, settings: HubSettings, layout: FindLayout) -> Path:
    if settings.is_offline:
        return _from_cache(model, settings, layout)
    found = _found_on_hub(model, settings, layout)
    return found if isinstance(found, Path) else _download(model, found, settings, layout)


def _found_on_hub(model: HubId, settings: HubSettings, layout: FindLayout) -> _Commit | Path:
    """Return the commit of the model.

    If the hub cannot be reached, returns a complete directory in the cache instead.
    """
    try:
        with explained(model, settings):
            commit = _commit_of(model, settings)
    except Unavailable as error:
        try:
            folder = _from_cache(model, settings, layout)
        except (NotFound, FailedPrecondition):
            raise error from None
        print(
            f"{error.message}; using the complete version in the cache",
            file=settings.output,
            flush=True,
        )
        return folder
    return commit


def _download(
    model: HubId, commit: _Commit, settings: HubSettings, find_layout: FindLayout
) -> Path:
    storage = _storage(model, settings)
    snapshot = storage / "snapshots" / commit.sha
    downloads = Downloads(model, commit.sha, settings)
    weights = _describe(model, commit, downloads, snapshot, find_layout)
    missing = [commit.files[each] for each in weights if downloads.cached(each) is None]
    if missing:
        total = sum(each.size for each in missing)
        _check_room(model, total, storage, settings)
        with TransferProgress(str(model), total, settings.output) as progress:
            downloads.fetch(missing, progress)
    with explained(model, settings):
        _write_ref(storage, model, commit.sha)
    return snapshot


def _describe(
    model: HubId,
    commit: _Commit,
    downloads: Downloads,
    snapshot: Path,
    find_layout: FindLayout,
) -> list[str]:
    """Download the files that describe the weights and return the paths of the weights."""
    paths = commit.files.keys()
    downloads.fetch([commit.files[each] for each in identifying_files() if each in paths])
    with _about(model):
        layout = find_layout(snapshot, paths)
    downloads.fetch([commit.files[each] for each in description_files(layout, paths)])
    with _about(model):
        return weight_files(layout, paths, lambda index: _listed(snapshot / index))


def _copy_headers(
    model: HubId, commit: _Commit, settings: HubSettings, layout: FindLayout, folder: Path
) -> Path:
    snapshot = _storage(model, settings) / "snapshots" / commit.sha
    downloads = Downloads(model, commit.sha, settings)
    weights = _describe(model, commit, downloads, snapshot, layout)
    for path in commit.files:
        copy = folder / path
        cached = downloads.cached(path)
        if cached is None and not (path in weights and path.endswith(".safetensors")):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if cached is not None:
            copy.symlink_to(cached)
        else:
            copy.write_bytes(downloads.header(path))
    return folder


def _commit_of(model: HubId, settings: HubSettings) -> _Commit:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=settings.url, token=settings.token or None)
    try:
        found = api.model_info(
            model.repository,
            revision=model.revision,
            files_metadata=True,
            timeout=LISTING_TIMEOUT_S,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise _no_hub(model, settings) from error
    if found.sha is None:
        raise _no_hub(model, settings)
    files = (RemoteFile(each.rfilename, each.size or 0) for each in found.siblings or ())
    return _Commit(found.sha, {each.path: each for each in files})


def _no_hub(model: HubId, settings: HubSettings) -> FailedPrecondition:
    return FailedPrecondition(
        f"{model}: {settings.url} did not respond like the Hugging Face hub; correct HF_ENDPOINT"
    )


def _from_cache(model: HubId, settings: HubSettings, find_layout: FindLayout) -> Path:
    """Return the directory of a complete checkpoint in the cache.

    Raises `NotFound` or `FailedPrecondition` if there is none.
    """
    storage = _storage(model, settings)
    ref = storage / "refs" / model.revision
    commit = ref.read_text().strip() if ref.is_file() else model.revision
    snapshot = storage / "snapshots" / commit
    if not snapshot.is_dir():
        raise NotFound(
            f"model: {model} is not in the cache {settings.cache_dir}, and downloads are "
            "disabled; start once without --offline and HF_HUB_OFFLINE, or set --cache",
            field="model",
        )
    paths = {
        each.relative_to(snapshot).as_posix() for each in snapshot.rglob("*") if each.is_file()
    }
    with _about(model):
        layout = find_layout(snapshot, paths)
        weights = weight_files(layout, paths, lambda index: _listed(snapshot / index))
        for folder in layout.folders:
            prefix = f"{folder}/" if folder else ""
            within = [each for each in weights if each.rpartition("/")[0] == folder]
            if f"{prefix}{CONFIG_FILE}" in paths and not within:
                raise FailedPrecondition(
                    f"{snapshot / folder}: the cache contains no weights; to complete it, start "
                    "once without --offline and HF_HUB_OFFLINE"
                )
    return snapshot


def _storage(model: HubId, settings: HubSettings) -> Path:
    """Return the repository's directory in the cache."""
    from huggingface_hub.file_download import repo_folder_name

    return settings.cache_dir / repo_folder_name(repo_id=model.repository, repo_type="model")


def _write_ref(storage: Path, model: HubId, commit: str) -> None:
    """Store the commit of the revision after all of its files have been downloaded."""
    if model.revision == commit:
        return
    ref = storage / "refs" / model.revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)


def _listed(index: Path) -> set[str]:
    """Return the names of the files that an index lists."""
    with reading(index):
        return {str(each) for each in json.loads(index.read_bytes())["weight_map"].values()}


def _check_room(model: HubId, total: int, storage: Path, settings: HubSettings) -> None:
    """Raise `ResourceExhausted` if `total` bytes do not fit on the disk that contains the cache."""
    partial = sum(each.stat().st_size for each in storage.glob(f"blobs/*{PARTIAL}"))
    free = shutil.disk_usage(storage).free
    needed = total - partial + SPARE_BYTES
    if needed > free:
        raise ResourceExhausted(
            f"{settings.cache_dir}: {model} requires {size(needed)}, but only {size(free)} are "
            "available; free disk space, or set another cache folder (--cache or HF_HOME)"
        )


@contextlib.contextmanager
def _about(model: HubId) -> Iterator[None]:
    """Add the ID of the model to errors about files in the cache."""
    try:
        yield
    except AntiphonError as error:
        raise type(error)(f"{model}: {error.message}", field=error.field or "model") from error
