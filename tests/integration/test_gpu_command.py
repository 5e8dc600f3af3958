"""`make gpu`'s commands on a CPU, at tiny sizes: every row runs, so that on a GPU it does too.

They run from a bare copy, in an environment that has what `benchmarks/gpu/README.md` names and
nothing else.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from transformers import Qwen3OmniMoeThinkerForConditionalGeneration
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerForConditionalGeneration,
)

from antiphon.deployment.schema import StageConfig
from antiphon.runtime.checkpoint.submodule import construct
from antiphon_services.lm.memory import WORKING_BYTES
from antiphon_services.stage.memory_plan import Cached, plan_stage
from antiphon_tools.launcher.plan import import_path
from benchmarks.gpu import fidelity
from benchmarks.gpu.__main__ import NO_DEVICE, main
from benchmarks.gpu.engines import engine_rows
from benchmarks.gpu.fidelity import Answer, Lab, fidelity_rows
from benchmarks.gpu.pipeline import pipeline_rows
from benchmarks.gpu.scale import (
    EAGER,
    NARROW,
    ROOMY,
    ROOMY_BYTES,
    Way,
    scale_for,
)
from benchmarks.gpu.weights import sizes_of, whole_config

HERE = Path(__file__).parents[2]
WHEELS = HERE / "benchmarks/gpu/wheels.txt"
# What the machine has, with all that these need; as `benchmarks/gpu/README.md` says.
MACHINE = ("torch", "transformers", "h11", "click", "pytest-xdist")
# What the versions here need and older ones, as the machine has, do not.
LACKED = {"httpcore2", "truststore"}
NOT_COPIED = {"models", "out", "__pycache__"}
SKIPS = """
import pytest

@pytest.mark.gpu
@pytest.mark.skipif(True, reason="requires a GPU")
def test_by_mark(): ...

@pytest.mark.gpu
def test_by_itself():
    pytest.skip("no peer")

@pytest.mark.gpu
def test_that_runs(): ...

@pytest.mark.skip
def test_of_another_kind(): ...
"""


def wheels() -> dict[str, Requirement]:
    """The list, by canonical name."""
    lines = WHEELS.read_text("utf-8").splitlines()
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(each.name): each for each in found}


def with_needs(names: Iterable[str]) -> set[str]:
    """Canonical names of these distributions, and of what they need here."""
    found: set[str] = set()
    left = [canonicalize_name(each) for each in names]
    while left:
        if (name := left.pop()) in found:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                left.append(canonicalize_name(needed.name))
    return found


@dataclass(frozen=True)
class Bare:
    """A copy of the checkout without `models`, and a Python with the machine's packages alone."""

    copy: Path
    python: Path
    packages: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        path = os.pathsep.join((import_path(self.copy), str(self.packages)))
        return subprocess.run(
            [self.python, *command],
            cwd=self.copy,
            env={**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def rows(self, part: str) -> tuple[dict[str, dict[str, Any]], Path]:
        """Rows of a part by name, and its file. Nothing failed, and nothing was left out."""
        path = self.copy / "out" / f"{part}.json"
        path.parent.mkdir(exist_ok=True)
        ran = self.run("-m", "benchmarks.gpu", part, "--device", "cpu", "--json", str(path))
        assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]
        facts, *rows, end = [json.loads(line) for line in ran.stdout.splitlines()]
        assert facts["part"] == end["part"] == part
        assert end["failed"] == end["left_out"] == []
        written = json.loads(path.read_text())
        assert [each["name"] for each in written["rows"]] == [each["name"] for each in rows]
        return {each["name"]: each for each in written["rows"]}, path


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    directory = tmp_path_factory.mktemp("bare")
    copy, packages = directory / "copy", directory / "packages"
    copy.mkdir()
    for each in HERE.iterdir():
        if each.name in NOT_COPIED or each.name.startswith("."):
            continue
        if each.is_dir():
            shutil.copytree(each, copy / each.name, ignore=shutil.ignore_patterns(*NOT_COPIED))
        else:
            shutil.copy(each, copy)
    allowed = (with_needs(MACHINE) - LACKED) | wheels().keys()
    for found in importlib.metadata.distributions():
        if canonicalize_name(found.name) not in allowed:
            continue
        for file in found.files or ():
            if ".." in file.parts or "__pycache__" in file.parts:
                continue
            linked = packages / file
            linked.parent.mkdir(parents=True, exist_ok=True)
            here = Path(str(found.locate_file(file)))
            if not linked.exists():
                linked.symlink_to(here)
            # With what is compiled already: torch and transformers take 6 s.
            compiled = linked.with_name("__pycache__")
            if not compiled.exists() and here.with_name("__pycache__").exists():
                compiled.symlink_to(here.with_name("__pycache__"))
    venv.create(directory / "python", with_pip=False)
    return Bare(copy, directory / "python/bin/python", packages)


def test_bare_environment_has_what_the_machine_has_and_nothing_else(bare: Bare) -> None:
    absent = ("hypothesis", "kubernetes", "av", "matplotlib", "mypy")
    assert all(map(importlib.util.find_spec, absent))
    known = ("torch", "transformers", "soundfile", "uvicorn", "httpcore2", *absent)
    look = f"from importlib.util import find_spec; print(*map(bool, map(find_spec, {known})))"
    assert bare.run("-c", look).stdout.split() == ["True"] * 5 + ["False"] * len(absent)
    assert not (bare.copy / "models").exists()


@pytest.mark.processes
def test_attention_tests_and_reference_are_checked_from_a_bare_copy(bare: Bare) -> None:
    rows, _ = bare.rows("correctness")
    for role in ("talker", "thinker", "code2wav"):
        assert rows[f"attention, {role}"]["calls"]["flash"] > 0
    marked = rows["tests that need a GPU"]
    assert marked["tests"] == marked["skipped"] > 10
    exact = [each for name, each in rows.items() if name.startswith("float32")]
    assert len(exact) >= 4
    assert all(each["holds"] and each["codes_equal"] == 1.0 for each in exact)
    assert sum("states" in name and each["holds"] for name, each in rows.items()) == 2


@pytest.mark.processes
def test_every_engine_is_measured_from_a_bare_copy(bare: Bare) -> None:
    rows, _ = bare.rows("engines")
    for engine in ("talker", "code2wav", "thinker"):
        timed = [each for name, each in rows.items() if name.startswith(engine)]
        assert sum(each.get("median_ms", 0.0) > 0.0 for each in timed) >= 4
    # What a deployment runs comes before what it is compared with.
    order = [name for name in rows if name.startswith(("talker", "thinker", "code2wav"))]
    eager = next(index for index, name in enumerate(order) if "eager" in name)
    assert {name.split(",")[0] for name in order[:eager]} == {"talker", "thinker", "code2wav"}
    assert all("graphs" in name for name in order[:eager])
    for switch in ("launch-ahead", "async_to_host off", "async_to_device off"):
        assert any(switch in name for name in rows), switch


@pytest.mark.processes
def test_sessions_and_every_way_of_bytes_are_measured_from_a_bare_copy(bare: Bare) -> None:
    rows, _ = bare.rows("pipeline")
    told = rows["pipeline, eager"]
    for load in ("2 sessions", "2 sessions, spoken"):
        assert told[load]["answers"] == 2
        assert 0.0 < told[load]["ttfa_ms"]["p50"] <= told[load]["ttfa_ms"]["p95"]
        assert told[load]["rtf"]["p50"] > 0.0
    for way in (
        "shared memory, pinned",
        "device handles",
        "process group, two ranks on one device",
    ):
        assert rows[way]["1024 KiB"]["gb_s"] > 0.0
    assert rows["link, shared_memory"]["8 KB"]["p50_us"] > 0.0


@pytest.mark.processes
def test_steps_are_traced_and_the_rest_is_measured_from_a_bare_copy(
    bare: Bare, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, path = bare.rows("traces")
    traced = rows["trace, talker, eager"]
    assert traced["operations"] > 100
    assert json.loads(Path(traced["trace"]).read_text())["traceEvents"]
    # A row that was left out is measured by the command that says so; the others stay.
    written = json.loads(path.read_text())
    took = {each["name"]: each["took_s"] for each in written["rows"]}
    for each in written["rows"]:
        if each["name"] == "trace, thinker, eager":
            each["left_out"] = "1 s of 540 s remain"
    path.write_text(json.dumps(written))
    assert main(["traces", "--device", "cpu", "--json", str(path), "--rest"]) == 0
    names = [json.loads(line).get("name") for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert names == ["a checkpoint without weights", "trace, thinker, eager"]
    after = {each["name"]: each["took_s"] for each in json.loads(path.read_text())["rows"]}
    assert after.keys() == took.keys()
    assert after["trace, talker, eager"] == took["trace, talker, eager"]


def test_every_switch_has_a_row_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (84 << 30, 84 << 30))
    gpu = torch.device("cuda", 99)
    switches = ["launch-ahead", "eager", "async_to_host off", "async_to_device off", "fused"]
    parts = {"engines": engine_rows(gpu, tmp_path), "pipeline": pipeline_rows(gpu, tmp_path)}
    for rows in parts.values():
        names = [each.name for each in rows if not each.setup]
        assert all(any(switch in name for name in names) for switch in switches)
        # What a deployment runs comes first, and repetitions come last, from the last row on.
        assert "graphs" in names[0]
        repeated = [name for name in names if name.endswith(", again")]
        assert names[-len(repeated) :] == repeated
        assert repeated[0].removesuffix(", again") in names
    assert "talker, graphs, launch-ahead, 32 sessions" in [each.name for each in parts["engines"]]
    compared = [each.name for each in fidelity_rows(gpu, tmp_path)]
    assert any("fused" in name for name in compared)
    # A stage that makes audio has no such setting.
    assert StageConfig(**Way(True, fused=True).audio_settings).torch.graphs


def test_list_of_wheels_has_what_stages_and_gateway_need_in_the_versions_of_the_locks() -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    wanted = [
        *project["project"]["dependencies"],
        *(each for name in ("wire", "server", "stage", "gateway") for each in extras[name]),
        *(each for each in project["dependency-groups"]["dev"] if each.startswith("pytest")),
    ]
    listed, there = wheels(), with_needs(MACHINE) - LACKED
    for each in map(Requirement, wanted):
        name = canonicalize_name(each.name)
        if name == "antiphon" or (name not in listed and name in there):
            continue
        assert name in listed, f"{name} is in neither benchmarks/gpu/wheels.txt nor on the machine"
        (version,) = listed[name].specifier
        assert version.operator == "=="
        assert version.version in each.specifier, f"{name}: pyproject.toml asks for {each}"
    locked: dict[str, str] = {}
    for lock in ("stage-cuda.txt", "gateway.txt"):
        text = (HERE / "tools/antiphon_tools/images/locks" / lock).read_text("utf-8")
        locked |= dict(re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE))
    for name, pinned in listed.items():
        if name in locked:
            assert str(pinned.specifier) == f"=={locked[name]}", f"{name}: another is locked"
    # All that a wheel needs is listed, or on the machine.
    for name in listed:
        missing = with_needs([name]) - listed.keys() - there
        assert not missing, f"{name} needs {missing}"


def test_pipeline_fits_the_memory_that_its_size_is_chosen_by() -> None:
    config, cuda = whole_config(sizes_of(torch.device("cuda"))), "cuda:0"
    texts = config.thinker_config.text_config, config.talker_config.text_config
    modules = [
        construct(Qwen3OmniMoeThinkerForConditionalGeneration, config.thinker_config),
        construct(Qwen3OmniMoeTalkerForConditionalGeneration, config.talker_config),
    ]
    del modules[0].visual
    # Three processes with a context each, and code2wav in float32.
    shared = 3 * (1 << 29) + 4 * 230e6 + WORKING_BYTES
    for free, scale in ((84e9, NARROW), (ROOMY_BYTES, ROOMY)):
        assert scale_for(free) is scale
        stage = StageConfig(device=cuda, slots=max(scale.sessions) + 1)
        taken = shared
        for text, module in zip(texts, modules, strict=True):
            numbers = sum(each.numel() for each in module.parameters())
            cached = Cached.of(text, row=text.hidden_size)
            plan = plan_stage(stage, numbers, 2 * numbers, cached, free=int(free), total=int(free))
            taken += plan.weights + plan.cache(scale.context) + plan.working
        assert taken < free, f"{taken / 1e9:.1f} GB of {free / 1e9:.0f} GB"
    assert scale_for(ROOMY_BYTES - 1) is NARROW


@pytest.mark.parametrize("part", ["require", "correctness"])
def test_command_says_what_is_missing_when_there_is_no_such_device(
    part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    assert main([part, "--device", "cuda:99", "--json", str(path)]) == NO_DEVICE
    assert "requires a GPU" in capsys.readouterr().err
    assert not path.exists()


def test_tests_that_need_a_gpu_fail_when_they_would_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_skips.py").write_text(SKIPS, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest"]
    run = subprocess.run(
        [*command, "-c", str(HERE / "pyproject.toml"), "--gpu", "-m", "gpu", str(tmp_path)],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stdout
    # What a mark skips is skipped before it runs.
    assert "1 failed, 1 passed, 1 deselected, 1 error" in run.stdout
    assert "was skipped" in run.stdout


def test_row_does_not_hold_when_codes_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path, 1, 5, 4)
    told, other = Answer(*(np.arange(6),) * 3), Answer(np.arange(6), np.arange(1, 7), np.arange(6))
    lab.answers["why"] = told
    monkeypatch.setattr(fidelity, "Lab", lambda *_: lab)
    rows = {row.name: row for row in fidelity.fidelity_rows(torch.device("cpu"), tmp_path)}
    for made, holds in (([told], True), ([other], False)):
        monkeypatch.setattr(fidelity, "_answers", lambda *_, made=made: made)
        assert rows[f"float32, {EAGER}"].measure()["holds"] is holds
