"""Versions of a release, the workflows' files, and bills of materials."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import helm_python
import pytest
import yaml

from antiphon_tools.release import (
    BEFORE_RELEASES,
    STATEMENTS,
    VERSION,
    faults,
    of_chart,
    set_version,
)
from tests.deploy.chart_rendering import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LOCKS = ROOT / "tools" / "antiphon_tools" / "images" / "locks"
DAY = datetime.date(2030, 1, 2)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the files that state a version, and pages of a released one."""
    for file in BEFORE_RELEASES:
        (tmp_path / file).write_text("pip install antiphon-server\n")
    for file in {each.file for each in STATEMENTS} | {"CHANGELOG.md"}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "proto" / "released").mkdir(parents=True)
    for version in ("1.2", "0.2"):
        (tmp_path / "proto" / "released" / f"{version}.binpb").touch()
    return tmp_path


def test_every_file_states_one_version() -> None:
    stated = {
        version for each in STATEMENTS if not each.of_chart for version in each.found_in(ROOT)
    }
    (version,) = stated
    assert VERSION.fullmatch(version)
    charts = [found for each in STATEMENTS if each.of_chart for found in each.found_in(ROOT)]
    assert charts == [of_chart(version)]
    assert all(each.found_in(ROOT) for each in STATEMENTS)


def test_no_other_file_states_the_version() -> None:
    (version,) = STATEMENTS[0].found_in(ROOT)
    number = rf"(?<![\w.]){re.escape(version)}(?![\w.-])"
    # Other packages have a version like ours, but not that of its development.
    pattern = number if ".dev" in version else f"(?i)antiphon.*{number}|{number}.*antiphon"
    listed = subprocess.run(
        ["git", "grep", "-lP", pattern], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert listed.returncode in {0, 1}, listed.stderr
    known = {each.file for each in STATEMENTS}
    # Results name the version that they measured, and examples of pages one of any time.
    stating = {
        file
        for file in listed.stdout.split()
        if not file.startswith(("benchmarks/results/", "docs/"))
    }
    assert stating <= known | {"tests/deploy/test_release.py"}


def test_page_that_a_release_makes_wrong_is_named(checkout: Path) -> None:
    set_version(checkout, "1.2.3", DAY)
    for file, phrases in BEFORE_RELEASES.items():
        for phrase in phrases:
            (checkout / file).write_text(f"Antiphon {phrase}.\n")
            (fault,) = faults(checkout, "v1.2.3")
            assert fault == f"{file}: still says {phrase!r}; describe the released version"
        (checkout / file).write_text("pip install antiphon-server\n")


@pytest.mark.parametrize(
    ("version", "chart"),
    [("1.2.3", "1.2.3"), ("0.2.0rc1", "0.2.0-rc.1"), ("0.2.0.dev0", "0.2.0-dev.0")],
)
def test_a_version_that_is_set_can_be_released(checkout: Path, version: str, chart: str) -> None:
    set_version(checkout, version, DAY)
    assert f"version: {chart}\n" in (checkout / "helm/antiphon/Chart.yaml").read_text()
    found = list(faults(checkout, f"v{version}"))
    if ".dev" in version:
        assert found == [f"CHANGELOG.md: the first section must be {version} with a date"]
    else:
        assert found == []
        assert f"## {version} (2030-01-02)\n" in (checkout / "CHANGELOG.md").read_text()


def test_each_file_with_another_version_is_named(checkout: Path) -> None:
    set_version(checkout, "1.2.3", DAY)
    for each in STATEMENTS:
        each.write(checkout, "1.2.4")
        assert [line.partition(":")[0] for line in faults(checkout, "v1.2.3")] == [each.file]
        each.write(checkout, "1.2.3")
    wrong = "1.2.3: is not a valid release tag; use the form v1.2.0"
    assert list(faults(checkout, "1.2.3")) == [wrong]
    with pytest.raises(ValueError, match="is not a valid version"):
        set_version(checkout, "1.2", DAY)


def test_a_release_dates_its_section_or_takes_what_is_unreleased(checkout: Path) -> None:
    changelog = checkout / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## Unreleased\n\n## 1.2.3 (unreleased)\n\n- One.\n")
    set_version(checkout, "1.2.3", DAY)
    dated = "## 1.2.3 (2030-01-02)\n\n- One.\n"
    assert changelog.read_text() == f"# Changelog\n\n## Unreleased\n\n{dated}"
    changelog.write_text(f"# Changelog\n\n## Unreleased\n\n- Two.\n\n{dated}")
    set_version(checkout, "1.2.4", DAY)
    newer = "## 1.2.4 (2030-01-02)\n\n- Two.\n"
    assert changelog.read_text() == f"# Changelog\n\n## Unreleased\n\n{newer}\n{dated}"
    assert list(faults(checkout, "v1.2.4")) == []
    changelog.write_text(f"# Changelog\n\n## Unreleased\n\n- Three.\n\n{newer}\n{dated}")
    set_version(checkout, "1.2.4", DAY)
    assert list(faults(checkout, "v1.2.4")) == [
        "CHANGELOG.md: ## Unreleased has entries; move them to 1.2.4"
    ]
    changelog.write_text(f"# Changelog\n\n{newer}\n{dated}")
    (checkout / "proto" / "released" / "1.2.binpb").unlink()
    assert list(faults(checkout, "v1.2.4")) == [
        "proto/released/1.2.binpb: is missing; run `make proto-released RELEASED=1.2`",
        "CHANGELOG.md: ## Unreleased must come before all versions",
    ]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflow_is_valid_by_its_schema(file: Path) -> None:
    schema = "vendor.github-workflows"
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_run_what_there_is() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [
        step["run"]
        for file in WORKFLOWS
        for job in yaml.safe_load(file.read_text())["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    made = [word for line in commands for word in _targets(line)]
    assert set(made) <= targets
    assert {"audit", "images", "wheels", "sbom", "chart-package", "test-fast"} <= set(made)
    assert any(".ci/run" in line for line in commands)
    assert any("antiphon_tools.release check" in line for line in commands)


def _targets(command: str) -> list[str]:
    found = re.search(r"\bmake ([a-z -]+)", command)
    return found[1].split() if found else []


def test_chart_is_packaged_under_its_version(tmp_path: Path) -> None:
    made = helm_python.package(str(ROOT / "helm" / "antiphon"), destination=str(tmp_path))
    (version,) = STATEMENTS[-1].found_in(ROOT)
    assert Path(made).name == f"antiphon-{version}.tgz"


def test_bills_of_materials_have_every_locked_package(tmp_path: Path) -> None:
    lock = LOCKS / "gateway.txt"
    target = tmp_path / "gateway.cdx.json"
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "--of", "JSON", str(lock)]
    command += ["--output-reproducible", "--output-file", str(target)]
    subprocess.run(command, check=True, capture_output=True)
    content = json.loads(target.read_text())
    listed = {(each["name"], each["version"]) for each in content["components"]}
    locked = set(re.findall(r"^([a-z0-9-]+)==(\S+)", lock.read_text(), re.MULTILINE))
    assert listed == locked
