"""Copies the repository's Markdown pages. Their paths do not change, so their links remain
valid.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from antiphon_tools.checkout import ROOT, files_of

_STYLE = "td:first-child code { white-space: nowrap; word-break: normal }\n"
_LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)")


def copy_pages(folder: Path) -> None:
    """Copy all pages and the files that they link to. The directory is cleared first.

    Raises `subprocess.CalledProcessError` outside a checkout.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for page in (ROOT / each for each in files_of(pattern="*.md")):
        for each in (page, *_linked_files(page)):
            target = folder / each.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(each, target)
    (folder / "site.css").write_text(_STYLE)


def _linked_files(page: Path) -> list[Path]:
    """Return the files of the repository that a page links to."""
    targets = [
        (page.parent / link).resolve()
        for link in _LINK.findall(page.read_text())
        if not re.match(r"[a-z]+:", link)
    ]
    return [each for each in targets if each.is_file()]
