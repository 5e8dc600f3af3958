"""The directories and the list of a documentation site with several versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon_tools.reference.versions import add_version, directory_of


@pytest.mark.parametrize(
    ("version", "directory"),
    [("0.3.0", "0.3"), ("1.10.3", "1.10"), ("0.4.0.dev0", "dev"), ("0.4.0rc1", "dev")],
)
def test_directory_is_the_minor_version_of_a_release(version: str, directory: str) -> None:
    assert directory_of(version) == directory


def test_newest_release_is_latest_when_versions_are_added_in_any_order(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for version in ("0.10.0", "0.2.0", "0.9.1", "0.11.0.dev0", "0.9.2"):
        built = tmp_path / version
        built.mkdir()
        (built / "index.html").write_text(version)
        (built / f"only-{version}.html").touch()
        add_version(built, site, version)
    listed = json.loads((site / "versions.json").read_text())
    assert [(each["version"], each["aliases"]) for each in listed] == [
        ("0.10", ["latest"]),
        ("0.9", []),
        ("0.2", []),
        ("dev", []),
    ]
    assert 'url=0.10/"' in (site / "index.html").read_text()
    # A patch release replaces the pages of its minor version.
    assert (site / "0.9" / "index.html").read_text() == "0.9.2"
    assert not (site / "0.9" / "only-0.9.1.html").exists()
    assert sorted(each.name for each in site.iterdir() if each.is_dir()) == [
        "0.10",
        "0.2",
        "0.9",
        "dev",
    ]
