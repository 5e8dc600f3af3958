"""`python -m antiphon_tools.release`: set or check the version in every file that contains it.

`set VERSION` writes the version. Unless it is a development version, its section of the changelog
receives the date. The section is created below `Unreleased` if there is none. `check TAG` fails if
a file contains a different version than the tag, if `proto/released` has no descriptors of its
minor version, or if a page states that there is no release. The chart uses a semantic version, so
`1.3.0.dev0` becomes `1.3.0-dev.0` there.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSION = re.compile(r"\d+\.\d+\.\d+((?:a|b|rc)\d+|\.dev\d+)?")
CHANGELOG = Path("CHANGELOG.md")
UNRELEASED = "## Unreleased\n"
_SECTION = re.compile(r"^## (\S+) \((.*)\)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    """A file that contains the version.

    The only group in `pattern` matches the version. `of_chart` is true if it is the version of the
    chart.
    """

    file: str
    pattern: str
    of_chart: bool = False

    def found_in(self, root: Path) -> list[str]:
        """Return all versions that the file contains."""
        text = (root / self.file).read_text()
        return [match[1] for match in re.finditer(self.pattern, text, re.MULTILINE)]

    def write(self, root: Path, version: str) -> None:
        """Replace all versions in the file."""
        path = root / self.file
        stated = of_chart(version) if self.of_chart else version

        def replaced(match: re.Match[str]) -> str:
            start, end = match.start(1) - match.start(), match.end(1) - match.start()
            return match[0][:start] + stated + match[0][end:]

        path.write_text(re.sub(self.pattern, replaced, path.read_text(), flags=re.MULTILINE))


STATEMENTS = (
    Statement("pyproject.toml", r'^version = "(.*)"$'),
    Statement("pyproject.toml", r"antiphon-server==([^\"]*)"),
    Statement("packaging/server/pyproject.toml", r'^version = "(.*)"$'),
    Statement("packaging/server/pyproject.toml", r"antiphon\[[a-z,]+\]==([^\"]*)"),
    Statement("helm/antiphon/Chart.yaml", r"^appVersion: (.*)$"),
    Statement("helm/antiphon/Chart.yaml", r"^version: (.*)$", of_chart=True),
)

BEFORE_RELEASES = {
    "README.md": ("not on PyPI yet", "is in development"),
    "README.zh-CN.md": ("PyPI 上还没有发布", "正在开发中"),
}
"""Phrases of pages that are no longer true once a version is released."""


def of_chart(version: str) -> str:
    """Convert the version to the format of semantic versioning."""
    number, mark, rest = re.fullmatch(r"(\d+\.\d+\.\d+)\.?([a-z]*)(\d*)", version).groups()  # type: ignore[union-attr]
    return f"{number}-{mark}.{rest}" if mark else str(number)


def faults(root: Path, tag: str) -> Iterator[str]:
    """Yield the reasons why a tag cannot be released, such as files that contain a different
    version.
    """
    version = tag.removeprefix("v")
    if not tag.startswith("v") or not VERSION.fullmatch(version):
        yield f"{tag}: is not a valid release tag; use the form v1.2.0"
        return
    for each in STATEMENTS:
        wanted = of_chart(version) if each.of_chart else version
        found = each.found_in(root)
        if set(found) != {wanted}:
            stated = ", ".join(sorted(set(found))) or "no version"
            yield (
                f"{each.file}: contains version {stated} instead of {wanted}; run `release set "
                f"{version}`"
            )
    released = f"proto/released/{'.'.join(version.split('.')[:2])}.binpb"
    if not (root / released).exists():
        yield f"{released}: is missing; run `make proto-released RELEASED={Path(released).stem}`"
    for file, phrases in BEFORE_RELEASES.items():
        page = (root / file).read_text()
        for phrase in phrases:
            if phrase in page:
                yield f"{file}: still says {phrase!r}; describe the released version"
    text = (root / CHANGELOG).read_text()
    section = _SECTION.search(text)
    if not 0 <= text.find(UNRELEASED) < (section.start() if section else 0):
        yield f"{CHANGELOG}: {UNRELEASED.strip()} must come before all versions"
    elif (
        section
        and section[1] == version
        and text[text.find(UNRELEASED) + len(UNRELEASED) : section.start()].strip()
    ):
        yield f"{CHANGELOG}: {UNRELEASED.strip()} has entries; move them to {version}"
    if section is None or section[1] != version or section[2] == "unreleased":
        yield f"{CHANGELOG}: the first section must be {version} with a date"


def set_version(root: Path, version: str, day: datetime.date) -> None:
    """Write the version to every file. A release also receives its section of the changelog.

    Raises `ValueError` if `version` is not a valid version.
    """
    if not VERSION.fullmatch(version):
        raise ValueError(
            f"{version}: is not a valid version; use the form 1.2.0, 1.3.0rc1 or 1.3.0.dev0"
        )
    for each in STATEMENTS:
        each.write(root, version)
    if ".dev" not in version:
        path = root / CHANGELOG
        text, heading = path.read_text(), f"## {version} ({day})"
        section = _SECTION.search(text)
        if section is not None and section[1] == version:
            text = _SECTION.sub(heading, text, count=1)
        else:
            text = text.replace(UNRELEASED, f"{UNRELEASED}\n{heading}\n", 1)
        path.write_text(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Set or check the version and return the exit status."""
    parser = argparse.ArgumentParser(prog="release", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("set", help="write a version").add_argument("version")
    commands.add_parser("check", help=("fail unless all files contain this version")).add_argument(
        "tag"
    )
    given = parser.parse_args(arguments)
    if given.command == "check":
        found = list(faults(ROOT, given.tag))
        for each in found:
            print(f"release: {each}", file=sys.stderr)
        return 1 if found else 0
    try:
        set_version(ROOT, given.version, datetime.datetime.now(datetime.UTC).date())
    except ValueError as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
