"""Measures the style of pages and docstrings by looking for patterns that make sentences unclear.

Pages may match `PATTERNS` up to twice as often as well-maintained documentation (h11, etcd's raft,
trio, starlette, mini-sglang and Temporal), and their sentences must have a similar length.
`DOCSTRING_LIMITS` contains the limits for docstrings, which may only be lowered.

If the pages exceed a limit, `python -m antiphon_tools.wording` fails and prints the sentences that
match. `--docstrings` prints the rates for the docstrings in each top-level directory and the files
with the most matches.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from antiphon_tools.checkout import ROOT, files_of


@dataclass(frozen=True, slots=True)
class Pattern:
    """A group of words and the maximum number of matches per 10,000 words in pages."""

    words: re.Pattern[str]
    limit: float
    remedy: str


def _pattern(words: str, anchor: float, remedy: str) -> Pattern:
    """Create a pattern whose limit is twice the rate measured in other documentation."""
    return Pattern(re.compile(words, re.IGNORECASE), 2 * anchor, remedy)


PATTERNS: Mapping[str, Pattern] = {
    "person": _pattern(
        r"\b(nobody|everybody|whoever|whichever|anybody)\b", 0, "name the component"
    ),
    "archaic": _pattern(r"\b(anew|meanwhile|heed\w*)\b", 0, "write again, during, respect"),
    "speech": _pattern(
        r"\b(tells?|told|telling|says?|said|hears?|heard)\b",
        0.7,
        "write report, return, state, detect",
    ),
    "place": _pattern(r"\b(beside|behind)\b", 0.7, "write with, after, downstream"),
    "of which": _pattern(r"\bof wh(ich|om)\b", 0.3, "split the sentence"),
    "where": _pattern(r"(?:^|[.,;:(] )where\b", 3.7, "write if"),
}
MEDIAN_WORDS = 16
LONG_WORDS = 35
"""Limits on the number of words per sentence in the pages: the median and the 90th percentile."""

DOCSTRING_LIMITS: Mapping[str, Mapping[str, int]] = {
    folder: dict(zip(PATTERNS, limits, strict=True))
    for folder, limits in {
        "antiphon": (1, 1, 6, 2, 0, 2),
        "gateway": (1, 1, 6, 1, 1, 2),
        "services": (1, 1, 6, 5, 3, 3),
        "tools": (1, 1, 3, 1, 1, 2),
        "testkit": (1, 1, 2, 1, 1, 2),
        "models": (5, 5, 105, 14, 7, 9),
        "benchmarks": (3, 3, 39, 11, 6, 10),
    }.items()
}
"""The maximum number of matches of each pattern per 10,000 words, for the docstrings in each
top-level directory.
"""

_FENCE = re.compile(r"^[ \t]*(```|~~~).*?^[ \t]*\1[^\n]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"``[^`]+``|`[^`]+`")
_LINK = re.compile(r"\]\([^)\s]*\)")
_HEAD = re.compile(r"\A---\n.*?^---$", re.MULTILINE | re.DOTALL)
_WRAP = re.compile(r"(?<=\S)\n(?=[ \t]*[^\s\-*|#>\d])")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`(*\[])|\n+|\|")
_MARKER = re.compile(r"\A\s*(?:(?:[-*+>]|#+|\d+\.)\s+)?")
_WORD = re.compile(r"[A-Za-z']+")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence without code. `line` is the line number in its file, starting at 1."""

    path: Path
    line: int
    text: str
    is_row: bool = False
    """Whether the sentence is in a table or a heading, in which case its length is ignored."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {' '.join(self.text.split())}"


@dataclass(frozen=True, slots=True)
class Wording:
    """Sentences whose style is measured."""

    sentences: tuple[Sentence, ...]

    @property
    def words(self) -> int:
        """The total number of words."""
        return sum(len(_WORD.findall(each.text)) for each in self.sentences)

    def matching(self, pattern: Pattern) -> list[Sentence]:
        """Return the sentences that match a pattern. A sentence with several matches is included
        several times.
        """
        return [s for s in self.sentences for _ in pattern.words.finditer(s.text)]

    def rate(self, pattern: Pattern) -> float:
        """Return the number of matches per 10,000 words."""
        return 1e4 * len(self.matching(pattern)) / max(self.words, 1)

    def length(self, share: float) -> int:
        """Return the sentence length, in words, at the given quantile."""
        counts = sorted(
            count
            for each in self.sentences
            if not each.is_row and (count := len(each.text.split())) > 2
        )
        return counts[int(len(counts) * share)] if counts else 0


def sentences_of(path: Path, text: str) -> Iterator[Sentence]:
    """Yield the sentences of a Markdown page, without code, link targets and front matter."""
    for code in (_HEAD, _FENCE):
        text = code.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    text = _CODE.sub(lambda match: "X" + re.sub(r"[^\n]", " ", match.group()[1:]), text)
    text = _LINK.sub(lambda match: "]" + " " * (len(match.group()) - 1), text)
    joined = _WRAP.sub(" ", text)
    start = 0
    ends = [*(match.span() for match in _SENTENCE.finditer(joined)), (len(joined), len(joined))]
    for end, following in ends:
        sentence = joined[start:end]
        if _WORD.search(sentence):
            begin = start + len(sentence) - len(_MARKER.sub("", sentence))
            line = joined[joined.rfind("\n", 0, begin) + 1 : begin + 1].lstrip()
            yield Sentence(
                path,
                text.count("\n", 0, begin) + 1,
                joined[begin:end].strip(),
                line.startswith(("|", "#")),
            )
        start = following


def pages(root: Path = ROOT) -> Wording:
    """Return the sentences of all pages in the repository."""
    listed = files_of(root, "*.md")
    return Wording(
        tuple(s for path in listed for s in sentences_of(path, (root / path).read_text()))
    )


def docstrings(folder: str, root: Path = ROOT) -> Wording:
    """Return the sentences of all docstrings in a directory, except for generated code."""
    found = []
    for path in files_of(root, f"{folder}/*.py"):
        if path.match("antiphon/v1/*"):
            continue
        for node in ast.walk(ast.parse((root / path).read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node, clean=True)
                if text is not None:
                    shift = node.body[0].lineno - 1
                    found += [
                        Sentence(path, each.line + shift, each.text, each.is_row)
                        for each in sentences_of(path, text)
                    ]
    return Wording(tuple(found))


def faults_of_pages(wording: Wording) -> list[str]:
    """Return a description of each limit that the pages exceed, with the sentences that match."""
    faults = []
    for name, pattern in PATTERNS.items():
        rate = wording.rate(pattern)
        if rate > pattern.limit:
            head = f"{name}: {rate:.1f} in 10,000 words, at most {pattern.limit:.1f}; "
            matches = map(str, wording.matching(pattern))
            faults.append("\n  ".join([head + pattern.remedy, *matches]))
    for share, limit in ((0.5, MEDIAN_WORDS), (0.9, LONG_WORDS)):
        length = wording.length(share)
        if length > limit:
            longest = sorted(wording.sentences, key=lambda s: -len(s.text.split()))
            shown = [str(each) for each in longest if not each.is_row][:10]
            head = f"{share:.0%} of the sentences have up to {length} words, at most {limit}"
            faults.append("\n  ".join([head, *shown]))
    return faults


def faults_of_docstrings(measured: Mapping[str, Wording]) -> list[str]:
    """Return a description of each limit in `DOCSTRING_LIMITS` that is exceeded, with the files
    that match.
    """
    faults = []
    for folder, wording in measured.items():
        for name, limit in DOCSTRING_LIMITS[folder].items():
            pattern = PATTERNS[name]
            rate = wording.rate(pattern)
            if rate > limit:
                head = f"{folder}, {name}: {rate:.1f} in 10,000 words, at most {limit}; "
                faults.append("\n  ".join([head + pattern.remedy, *_worst(wording, [pattern])]))
    return faults


def _worst(wording: Wording, patterns: Iterable[Pattern], most: int = 20) -> list[str]:
    """Return the files with the most matches."""
    counts = Counter(str(each.path) for pattern in patterns for each in wording.matching(pattern))
    return [f"{count:4d}  {path}" for path, count in counts.most_common(most)]


def main() -> int:
    """Print the rates and the limits that are exceeded."""
    parser = argparse.ArgumentParser(description="Measures the style of pages and docstrings.")
    parser.add_argument(
        "--docstrings", action="store_true", help=("list the rates of each file with docstrings")
    )
    if not parser.parse_args().docstrings:
        faults = faults_of_pages(pages())
        print("\n".join(faults), file=sys.stderr)
        return bool(faults)
    measured = {folder: docstrings(folder) for folder in DOCSTRING_LIMITS}
    for folder, wording in measured.items():
        rates = {name: round(wording.rate(each), 1) for name, each in PATTERNS.items()}
        print(f"{folder}, {wording.words} words: {rates}")
        print("\n".join(f"  {each}" for each in _worst(wording, PATTERNS.values())))
    return bool(faults_of_docstrings(measured))


if __name__ == "__main__":
    sys.exit(main())
