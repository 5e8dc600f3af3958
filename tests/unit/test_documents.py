"""Links and file names of the documents lead somewhere, and the README stays a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antiphon_tools.checkout import ROOT, files_of

README_BYTES = 5_000
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
MODULE = re.compile(r"[\w./-]+\.py")
"""The whole path of a file of this repository, or the end of one."""


def _documents() -> list[Path]:
    return [ROOT / path for path in files_of(pattern="*.md")]


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def _broken(document: Path) -> list[str]:
    """Its relative links that lead to no file, or to no heading of one."""
    broken = []
    for link in LINK.findall(FENCE.sub("", document.read_text())):
        place, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (document.parent / place).resolve() if place else document
        if not target.exists():
            broken.append(link)
        elif anchor and target.suffix == ".md":
            headings = HEADING.findall(FENCE.sub("", target.read_text()))
            if anchor not in map(_anchor, headings):
                broken.append(link)
    return broken


def test_links_of_documents_lead_to_files_and_headings() -> None:
    documents = _documents()
    assert ROOT / "README.md" in documents
    broken = {str(each.relative_to(ROOT)): _broken(each) for each in documents}
    assert not {name: links for name, links in broken.items() if links}


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[a](other.md) [b](other.md#a-heading) [c](#own)\n# Own\n", []),
        ("[a](missing.md)", ["missing.md"]),
        ("[a](other.md#missing)", ["other.md#missing"]),
        ("```\n[a](missing.md)\n```\n[b](https://example.com/x)", []),
    ],
)
def test_broken_links_are_found(tmp_path: Path, text: str, broken: list[str]) -> None:
    (tmp_path / "other.md").write_text("# A *heading*\n")
    document = tmp_path / "document.md"
    document.write_text(text)
    assert _broken(document) == broken


def _missing(text: str, files: list[str]) -> list[str]:
    """Python files that a document names and that do not exist."""
    words = [word for code in CODE.findall(FENCE.sub("", text)) for word in code.split()]
    return [
        word
        for word in words
        if MODULE.fullmatch(word) and not any(f"/{file}".endswith(f"/{word}") for file in files)
    ]


def test_files_that_documents_name_exist() -> None:
    files = [str(path) for path in files_of(pattern="*.py")]
    missing = {
        str(each.relative_to(ROOT)): _missing(each.read_text(), files) for each in _documents()
    }
    assert not {name: words for name, words in missing.items() if words}


def test_missing_files_are_found() -> None:
    text = "`b.py` and `a/b.py` of `python -m x`, `gone.py`, `c/b.py`, `{x}.py`"
    assert _missing(text, ["a/b.py", "a/cb.py"]) == ["gone.py", "c/b.py"]


def test_readme_is_a_page() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= README_BYTES
