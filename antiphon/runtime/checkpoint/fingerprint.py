"""Computes a digest that stages use to verify that they serve the same checkpoint."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE
from antiphon.runtime.checkpoint.safetensors_header import read_header

DESCRIPTION_PATTERNS = (
    CONFIG_FILE,
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer*.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "*.safetensors.index.json",
    "*.yaml",
)
SAFETENSORS = ".safetensors"
OTHER_WEIGHTS = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.onnx")
FINGERPRINT_DIGITS = 32
SAMPLED_BLOCKS = 64
BLOCK_BYTES = 64 << 10
# The maximum number of folders in a checkpoint. If a directory has more, it is probably the wrong
# one. For example, it may contain several checkpoints.
MAX_FOLDERS = 64


def fingerprint(model_dir: Path, *others: Path) -> str:
    """Return a short hexadecimal digest that covers a checkpoint and the directories in `others`.

    If two stages have the same digest, they serve the same checkpoint. The digest covers the
    complete content of configuration, tokenizer and index files. For weight files, it covers the
    name, the size, the header and evenly spaced blocks, or the whole file if it is smaller than 4
    MiB. Subfolders are included if they contain weights and aren't hidden. Raises
    `FailedPrecondition` if the directory has no configuration, no weights or too many folders.
    """
    if others:
        all_of_them = "\n".join(fingerprint(each) for each in (model_dir, *others))
        return hashlib.sha256(all_of_them.encode()).hexdigest()[:FINGERPRINT_DIGITS]
    digest = hashlib.sha256()
    found = False
    for folder in _folders(model_dir):
        weights = [*_files(folder, f"*{SAFETENSORS}"), *_files(folder, *OTHER_WEIGHTS)]
        found = found or bool(weights)
        if weights or folder == model_dir:
            for path in _files(folder, *DESCRIPTION_PATTERNS):
                content = path.read_bytes()
                digest.update(_line(model_dir, path, len(content)) + content)
        for path in weights:
            digest.update(_line(model_dir, path, path.stat().st_size))
            for block in _sample(path):
                digest.update(block)
    if not found or not _files(model_dir, CONFIG_FILE, "*.yaml"):
        raise FailedPrecondition(f"{model_dir}: contains no {CONFIG_FILE} or no weights")
    return digest.hexdigest()[:FINGERPRINT_DIGITS]


def _folders(model_dir: Path) -> list[Path]:
    """Return the directory and its subfolders in a deterministic order."""
    folders = []
    for path, within, _ in os.walk(model_dir):
        within[:] = sorted(name for name in within if not name.startswith("."))
        folders.append(Path(path))
        if len(folders) > MAX_FOLDERS:
            raise FailedPrecondition(
                f"{model_dir}: contains more than {MAX_FOLDERS} folders; use the directory of a "
                "single checkpoint"
            )
    return folders


def _files(folder: Path, *patterns: str) -> list[Path]:
    """Return the folder's files that match any of the patterns, sorted by name."""
    found = {path for pattern in patterns for path in folder.glob(pattern)}
    return sorted(path for path in found if path.is_file())


def _line(model_dir: Path, path: Path, size: int) -> bytes:
    return f"{path.relative_to(model_dir).as_posix()} {size}\n".encode()


def _sample(path: Path) -> Iterator[bytes]:
    """Yield the header and then evenly spaced blocks from the rest of the file. If the rest is
    small, all of it is yielded.
    """
    try:
        header = read_header(path) if path.suffix == SAFETENSORS else b""
    except ValueError as error:
        raise FailedPrecondition(str(error)) from error
    yield header
    first, end = len(header), path.stat().st_size
    step = max(BLOCK_BYTES, (end - first) // SAMPLED_BLOCKS)
    with path.open("rb") as file:
        for offset in range(first, end, step):
            file.seek(offset)
            yield file.read(BLOCK_BYTES)
        file.seek(max(first, end - BLOCK_BYTES), os.SEEK_SET)
        yield file.read(BLOCK_BYTES)
