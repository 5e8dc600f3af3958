"""The SDK's pages, by pdoc."""

from __future__ import annotations

from pathlib import Path

import pdoc

import antiphon


def write_sdk_pages(folder: Path) -> None:
    """Write a page of everything that the SDK exports, and nothing else, into a folder."""
    for name in antiphon.__all__:
        # Names load when they are first used, and pdoc looks at those that are there.
        setattr(antiphon, name, getattr(antiphon, name))
    pdoc.pdoc("antiphon", r"!antiphon\.", output_directory=folder)
