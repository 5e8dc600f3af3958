"""Selects the tests that are most likely to detect a fault in a file, based on imports and on words
that they have in common.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

from antiphon_tools.launcher.plan import IMPORT_ROOTS

FOLDERS = {"unit": 0.0, "contract": 1.0, "conformance": 1.0, "integration": 1.5, "equality": 3.0}
"""The directories that contain tests and a penalty for each that affects the order."""
STARTED = {
    "antiphon_tools.launcher.process": ("antiphon_gateway.__main__", "antiphon_services.__main__"),
    "antiphon_tools.launcher.fork_server": (
        "antiphon_gateway.__main__",
        "antiphon_services.__main__",
    ),
}
"""Maps modules to the modules that they start as separate processes. Imports don't reveal this
dependency.
"""

_WORD = re.compile(r"[A-Z]?[a-z]+")
_MODULE = re.compile(r"(antiphon(?:_gateway|_services|_testkit|_tools)?)(\.\w+)+")


class LikelyTests:
    """The import graph of a tree and the words in its files."""

    def __init__(self, root: Path, packages: tuple[str, ...]) -> None:
        self._root = root
        self._files = {
            _module(path.relative_to(root)): path.relative_to(root)
            for package in packages
            for path in sorted((root / package).rglob("*.py"))
        }
        tests = [
            path.relative_to(root)
            for folder in FOLDERS
            for path in sorted((root / "tests" / folder).rglob("*.py"))
        ]
        tests += [path.relative_to(root) for path in sorted((root / "tests").glob("*.py"))]
        self._files |= {_test_module(path): path for path in tests}
        self._words = {path: self._words_of(path) for path in self._files.values()}
        seen = Counter(word for words in self._words.values() for word in words)
        self._weight = {word: math.log(len(self._words) / count) for word, count in seen.items()}
        self._users: dict[Path, set[Path]] = {path: set() for path in self._files.values()}
        for path in self._files.values():
            for used in self._uses(path):
                self._users[used].add(path)

    def ranked(self, path: Path) -> list[Path]:
        """Return the test files that depend on a file through imports, starting with the most
        likely.
        """
        mirror = f"test_{path.stem}"
        ranks = []
        for test, distance in self._distances(path).items():
            if test.name.startswith("test_") and test.parts[1] in FOLDERS:
                rank = FOLDERS[test.parts[1]] + distance / 3 - 5 * self._likeness(path, test)
                ranks.append((test.stem != mirror, rank, test))
        return [test for *_, test in sorted(ranks)]

    def _distances(self, path: Path) -> dict[Path, int]:
        """Return the number of imports between a file and each file that depends on it."""
        distances, following = {path: 0}, deque([path])
        while following:
            used = following.popleft()
            for user in self._users[used]:
                if user not in distances:
                    distances[user] = distances[used] + 1
                    following.append(user)
        return distances

    def _likeness(self, one: Path, other: Path) -> float:
        """Return the cosine similarity of the words in two files. Rare words have a higher
        weight.
        """
        lengths, product = [], 0.0
        for words in (self._words[one], self._words[other]):
            squares = sum((count * self._weight[word]) ** 2 for word, count in words.items())
            lengths.append(math.sqrt(squares))
        for word, count in self._words[one].items():
            product += count * self._words[other][word] * self._weight[word] ** 2
        return product / (lengths[0] * lengths[1]) if all(lengths) else 0.0

    def _words_of(self, path: Path) -> Counter[str]:
        text = (self._root / path).read_text()
        counted = Counter(word.lower() for word in _WORD.findall(text))
        return Counter({word: 1 + math.log(count) for word, count in counted.items()})

    def _uses(self, path: Path) -> Iterator[Path]:
        """Yield the files that a file imports, names or starts. For a test, this includes its
        conftests.
        """
        for name in self._names(path):
            for module in (name, name.rpartition(".")[0]):
                if module in self._files:
                    yield self._files[module]
                    break
        if path.parts[0] == "tests":
            for folder in path.parents:
                if folder / "conftest.py" in self._words:
                    yield folder / "conftest.py"

    def _names(self, path: Path) -> Iterator[str]:
        module = _module(path)
        yield from STARTED.get(module, ())
        for node in ast.walk(ast.parse((self._root / path).read_text())):
            match node:
                case ast.Import(names):
                    yield from (each.name for each in names)
                case ast.ImportFrom(str(source), names, 0):
                    for each in names:
                        yield f"{source}.{each.name}"
                case ast.Constant(str(text)) if found := _MODULE.match(text):
                    yield found[0]


def _module(path: Path) -> str:
    """Return the name by which a file in a checkout is imported, without its import root."""
    parts = path.with_suffix("").parts
    if parts[0] in IMPORT_ROOTS:
        parts = parts[1:]
    return ".".join(parts).removesuffix(".__init__")


def _test_module(path: Path) -> str:
    """Return the module name of a test file, or the path of a `conftest.py`.

    Tests import modules in their own directory without a package name.
    """
    return str(path) if path.name == "conftest.py" else path.stem
