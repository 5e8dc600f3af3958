"""Lists the files of a checkout, including new files that Git does not ignore."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def files_of(root: Path = ROOT, pattern: str = "*") -> list[Path]:
    """Return the existing files that match a Git pattern, relative to `root`.

    Raises `subprocess.CalledProcessError` if `root` is not in a checkout.
    """
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", pattern]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (root / (path := Path(name))).is_file()]
