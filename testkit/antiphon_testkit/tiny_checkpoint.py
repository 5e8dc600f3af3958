"""Helpers for writing a tiny checkpoint of any family: its directory, its files and the command."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from antiphon.errors import AntiphonError, FailedPrecondition
from antiphon_testkit.tiny_shape import TinySizes
from antiphon_testkit.tiny_tokenizer import TinyVocabulary

MAX_SHARD_BYTES = 500_000

Sizes = TypeVar("Sizes", bound=TinySizes)


def make_directory(directory: Path) -> None:
    """Create a directory for a checkpoint.

    Raises `FailedPrecondition` if the directory is not empty.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FailedPrecondition(f"{directory}: is not an empty directory")
    directory.mkdir(parents=True, exist_ok=True)


def save_model(model: Any, directory: Path, vocabulary: TinyVocabulary) -> None:
    """Write a transformers model in several shards, and the files needed to generate with it."""
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=vocabulary.ids["<|im_end|>"], pad_token_id=vocabulary.ids["<|endoftext|>"]
    )
    model.save_pretrained(directory, max_shard_size=MAX_SHARD_BYTES)


@dataclass(frozen=True, slots=True)
class TinyCheckpointCommand(Generic[Sizes]):
    """The command that writes a family's tiny checkpoint. It has an option for each size.

    `presets` contains sizes by name, starting with the default. `module` is the module that
    contains the command.
    """

    family: str
    module: str
    presets: Mapping[str, Sizes]
    build: Callable[[Path, Sizes, int], None]

    def run(self, arguments: Sequence[str] | None = None) -> int:
        """Parse the arguments, write the checkpoint and print its size. Returns the exit status."""
        parser = self._make_parser()
        given = vars(parser.parse_args(arguments))
        directory, seed = given.pop("directory"), given.pop("seed")
        preset, force = self.presets[given.pop("preset")], given.pop("force")
        try:
            shape = dataclasses.replace(preset, **{k: v for k, v in given.items() if v is not None})
            if force:
                _remove_checkpoint(directory)
            self.build(directory, shape, seed)
        except (AntiphonError, OSError) as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return 1
        size = sum(each.stat().st_size for each in directory.rglob("*") if each.is_file())
        print(f"{directory}: {size / 1e6:.1f} MB")
        return 0

    def _make_parser(self) -> argparse.ArgumentParser:
        presets = self.presets.values()
        parser = argparse.ArgumentParser(
            prog=f"python -m {self.module}",
            description=f"Write a tiny random {self.family} checkpoint for tests and trials.",
        )
        parser.add_argument("directory", metavar="DIR", type=Path, help="where to write; empty")
        parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: 0)")
        first = next(iter(self.presets))
        parser.add_argument(
            "--preset", choices=self.presets, default=first, help=f"(default: {first})"
        )
        parser.add_argument("--force", action="store_true", help="replace the checkpoint in DIR")
        sizes = parser.add_argument_group("sizes", "each replaces the preset's")
        for name, kept in dataclasses.asdict(self.presets[first]).items():
            option = f"--{name.replace('_', '-')}"
            default = " / ".join(f"{getattr(preset, name)}" for preset in presets)
            if isinstance(kept, bool):
                action = argparse.BooleanOptionalAction
                sizes.add_argument(option, action=action, default=None, help=f"({default})")
            elif isinstance(kept, int):
                sizes.add_argument(option, type=int, metavar="N", help=f"({default})")
        return parser


def _remove_checkpoint(directory: Path) -> None:
    """Delete a checkpoint directory, or a directory that contains only checkpoints. Raises
    `FailedPrecondition` for any other directory that is not empty.
    """
    if not directory.is_dir() or not any(directory.iterdir()):
        return
    if not _is_checkpoint(directory) and not all(map(_is_checkpoint, directory.iterdir())):
        raise FailedPrecondition(f"{directory}: is no checkpoint, so --force does not delete it")
    shutil.rmtree(directory)


def _is_checkpoint(directory: Path) -> bool:
    return (directory / "config.json").is_file() and any(directory.glob("*.safetensors"))
