"""Generates the SDK's pages with pdoc."""

from __future__ import annotations

from pathlib import Path

import pdoc

import antiphon


def write_sdk_pages(folder: Path) -> None:
    """Write a page that contains only the names that the SDK exports."""
    for name in antiphon.__all__:
        # The SDK loads names when they are first used, but pdoc only documents names that are
        # loaded.
        setattr(antiphon, name, getattr(antiphon, name))
    pdoc.pdoc("antiphon", r"!antiphon\.", output_directory=folder)
