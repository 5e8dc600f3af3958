"""`python -m antiphon_tools.reference.versions BUILT SITE`: adds a build of the documentation to a
site that contains several versions. `make docs-version` runs it.

Each minor version has a directory, such as `0.1`. Builds of development versions are in `dev`. The
theme's version selector reads `versions.json` in the format of mike, the tool that the theme
recommends. We don't use mike itself, because it can only store a site as commits on a Git branch.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from antiphon.version import VERSION

DEV = "dev"
LATEST = "latest"
"""The alias of the newest release. The theme shows a warning on the pages of all other versions."""

_INDEX = """<!doctype html>
<meta charset="utf-8"><title>antiphon</title>
<meta http-equiv="refresh" content="0; url={version}/">
<a href="{version}/">antiphon {version}</a>
"""


def directory_of(version: str) -> str:
    """Return the directory name for a version: its minor version, or `dev` unless the version is a
    release.
    """
    release = re.fullmatch(r"(\d+\.\d+)\.\d+", version)
    return release[1] if release else DEV


def add_version(built: Path, site: Path, version: str) -> None:
    """Copy a build to the directory of its version and update `versions.json` and `index.html`.

    An existing build of the same minor version is replaced.
    """
    shutil.copytree(built, fresh := site / f".{directory_of(version)}")
    shutil.rmtree(target := site / directory_of(version), ignore_errors=True)
    fresh.rename(target)
    names = [each.name for each in site.iterdir() if re.fullmatch(rf"{DEV}|\d+\.\d+", each.name)]
    names.sort(key=_newest_first)
    released = [name for name in names if name != DEV]
    listed = [
        {"version": name, "title": name, "aliases": [LATEST] if name in released[:1] else []}
        for name in names
    ]
    (site / "versions.json").write_text(json.dumps(listed, indent=2) + "\n")
    (site / "index.html").write_text(_INDEX.format(version=(released or names)[0]))


def _newest_first(name: str) -> tuple[float, ...]:
    if name == DEV:
        return (1.0,)
    return (0.0, *(-float(part) for part in name.split(".")))


if __name__ == "__main__":
    add_version(Path(sys.argv[1]), Path(sys.argv[2]), VERSION)
