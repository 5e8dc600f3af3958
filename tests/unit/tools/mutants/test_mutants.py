"""Mutants: what is changed, which tests are chosen, and what a trial finds."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from antiphon_tools.mutants.__main__ import main
from antiphon_tools.mutants.mutations import Mutant, draw, mutants_of, settings_of
from antiphon_tools.mutants.selection import LikelyTests
from antiphon_tools.mutants.trial import ScratchTree, Verdict

SOURCE = '''"""Says ü, which is two bytes."""

import logging

log = logging.getLogger("it")
LIMIT = 3


def most(values: list[int], floor: int, config: "Config") -> int:
    """The largest, within bounds."""
    if not values or any(value < 0 for value in values):
        raise ValueError(f"values: {len(values) + 1}")
    log.info("at %s", 1 + 1)
    assert floor > 0
    found = max(values) if len(values) > 1 else values[0]
    found += clamp(found, floor)
    return min(found, config.wait_s)
'''.encode()
SETTINGS = (
    b"class GateConfig:\n    wait_s: float = 1.0\n    return_s: float = 2.0\n    name: str\n\n\n"
    b"class OtherConfig:\n    wait_s: float = 3.0\n"
)


def written(operator: str) -> set[tuple[str, str]]:
    """What the mutants of an operator replace, and with what."""
    siblings = {"wait_s": ("return_s",)}
    mutants = mutants_of(Path("it.py"), SOURCE, siblings)
    return {(each.before, each.after) for each in mutants if each.operator == operator}


@pytest.mark.parametrize(
    ("operator", "changes"),
    [
        ("comparison", {("value < 0", "(value <= 0)"), ("value < 0", "(value >= 0)"),
                        ("len(values) > 1", "(len(values) >= 1)"),
                        ("len(values) > 1", "(len(values) <= 1)")}),
        ("not", {("not values", "values")}),
        ("twin", {("any", "all"), ("max", "min"), ("min", "max")}),
        ("argument", {("found, floor", "floor, found"),
                      ("found, config.wait_s", "config.wait_s, found")}),
        ("statement", {("found += clamp(found, floor)", "pass")}),
        ("setting", {("config.wait_s", "config.return_s")}),
        ("constant", {("3", "2"), ("3", "4"), ("0", "-1"), ("0", "1"), ("1", "0"), ("1", "2")}),
        ("arithmetic", set()),
    ],
)  # fmt: skip
def test_operator_changes_what_it_is_for_and_leaves_the_rest_alone(
    operator: str, changes: set[tuple[str, str]]
) -> None:
    assert written(operator) == changes


def test_mutant_is_the_file_with_one_change() -> None:
    mutants = mutants_of(Path("it.py"), SOURCE, {})
    assert len({each.applied(SOURCE) for each in mutants}) == len(mutants)
    for each in mutants:
        mutated = each.applied(SOURCE)
        ast.parse(mutated)
        assert mutated[: each.start] == SOURCE[: each.start]
        assert mutated.endswith(SOURCE[each.stop :])
        assert SOURCE[each.start : each.stop].decode() == each.before
        assert SOURCE.decode().splitlines()[each.line - 1].strip()


def test_file_without_a_branch_has_no_mutants() -> None:
    assert not mutants_of(Path("it.py"), b"LIMIT = 1 + 2\nprint(LIMIT)\n", {})


def test_siblings_are_settings_of_one_type_in_every_class_that_has_them() -> None:
    siblings = settings_of([SETTINGS])
    assert siblings["return_s"] == ("wait_s",)
    assert siblings["wait_s"] == ()
    assert siblings["name"] == ()


def test_draw_is_the_same_for_a_seed_and_takes_every_file_before_any_twice() -> None:
    mutants = [
        each for name in ("a.py", "b.py", "c.py") for each in mutants_of(Path(name), SOURCE, {})
    ]
    drawn = draw(mutants, 5, seed=1)
    assert drawn == draw(mutants, 5, seed=1)
    assert drawn != draw(mutants, 5, seed=2)
    assert len({each.path for each in drawn[:3]}) == 3
    everything = draw(mutants, 10_000, seed=1)
    assert len(everything) == len(set(everything)) == len(mutants)


FILES = {
    "gateway/antiphon_gateway/__init__.py": "",
    "gateway/antiphon_gateway/gate.py": "def opens(age: int) -> bool:\n    return age >= 18\n",
    "gateway/antiphon_gateway/door.py": "from antiphon_gateway.gate import opens\n\n\n"
    "def enter(age: int) -> str:\n"
    "    return 'in' if opens(age) else 'out'\n",
    "gateway/antiphon_gateway/apart.py": "def apart(age: int) -> bool:\n    return age > 1\n",
    "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['.', 'gateway']\n"
    "markers = ['gpu: a', 'slow: b']\n",
    "tests/unit/test_gate.py": "from antiphon_gateway.gate import opens\n\n\n"
    "def test_gate() -> None:\n    assert opens(20)\n    assert not opens(3)\n",
    "tests/contract/doors.py": "from antiphon_gateway.door import enter\n\nENTER = enter\n",
    "tests/contract/test_door.py": "from doors import ENTER\n\n\n"
    "def test_door() -> None:\n    assert ENTER(18) == 'in'\n",
    "tests/unit/test_ages.py": "import pytest\nfrom antiphon_gateway.gate import opens\n\n\n"
    "@pytest.mark.parametrize('age', [18], ids=['just - so'])\n"
    "def test_age(age: int) -> None:\n    assert opens(age)\n",
    "tests/unit/test_apart.py": "from antiphon_gateway.apart import apart\n\n\n"
    "def test_apart() -> None:\n    assert apart(5)\n",
    "antiphon/deployment/schema.py": "",
    "antiphon/runtime/session/plan.py": "",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    return tmp_path


def test_tests_are_those_that_import_a_file_nearest_first(tree: Path) -> None:
    selection = LikelyTests(tree, ("gateway",))
    assert selection.ranked(Path("gateway/antiphon_gateway/gate.py")) == [
        Path("tests/unit/test_gate.py"),
        Path("tests/unit/test_ages.py"),
        Path("tests/contract/test_door.py"),
    ]
    assert selection.ranked(Path("gateway/antiphon_gateway/apart.py")) == [
        Path("tests/unit/test_apart.py")
    ]


def mutant(tree: Path, path: str, before: str, after: str) -> Mutant:
    source = (tree / path).read_bytes()
    start = source.index(before.encode())
    return Mutant(Path(path), "it", 2, start, start + len(before.encode()), before, after)


def test_trial_runs_tests_until_one_fails_and_changes_nothing_in_the_tree(tree: Path) -> None:
    tests = [Path("tests/unit/test_gate.py"), Path("tests/contract/test_door.py")]
    with ScratchTree(tree, limit_s=100) as scratch:
        boundary = mutant(tree, "gateway/antiphon_gateway/gate.py", ">=", "> ")
        outcome = scratch.try_mutant(boundary, tests)
        assert (outcome.verdict, outcome.test) == (
            Verdict.KILLED, "tests/contract/test_door.py::test_door",
        )  # fmt: skip
        assert scratch.try_mutant(boundary, tests[:1]).verdict is Verdict.SURVIVED
        assert (scratch.root / "gateway/antiphon_gateway/gate.py").read_text() == FILES[
            "gateway/antiphon_gateway/gate.py"
        ]
        broken = mutant(tree, "gateway/antiphon_gateway/gate.py", "return age", "return")
        assert scratch.try_mutant(broken, tests).verdict is Verdict.KILLED
    assert not scratch.root.exists()
    assert (tree / "gateway/antiphon_gateway/gate.py").read_text() == FILES[
        "gateway/antiphon_gateway/gate.py"
    ]


def test_test_whose_name_has_spaces_kills(tree: Path) -> None:
    with ScratchTree(tree, limit_s=100) as scratch:
        boundary = mutant(tree, "gateway/antiphon_gateway/gate.py", ">=", "> ")
        outcome = scratch.try_mutant(boundary, [Path("tests/unit/test_ages.py")])
        assert outcome.verdict is Verdict.KILLED
        assert outcome.test.startswith("tests/unit/test_ages.py::test_age[just")


def test_test_that_fails_without_the_fault_kills_nothing(tree: Path) -> None:
    (tree / "tests/unit/test_gate.py").write_text("def test_gate() -> None:\n    assert False\n")
    with ScratchTree(tree, limit_s=100) as scratch:
        boundary = mutant(tree, "gateway/antiphon_gateway/gate.py", ">=", "> ")
        tests = [Path("tests/unit/test_gate.py")]
        assert scratch.try_mutant(boundary, tests).verdict is Verdict.SURVIVED


def test_loop_ends_at_the_limit(tree: Path) -> None:
    with ScratchTree(tree, limit_s=3) as scratch:
        endless = mutant(
            tree, "gateway/antiphon_gateway/gate.py", "return age >= 18", "while True: pass"
        )
        outcome = scratch.try_mutant(endless, [Path("tests/unit/test_gate.py")])
        assert outcome.verdict is Verdict.LIMIT


def test_command_line_prints_the_seed_each_mutant_and_the_survivors(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tree)
    assert (
        main(
            [
                "--seed",
                "3",
                "--count",
                "2",
                "--files",
                "gateway/antiphon_gateway/apart.py",
                "--list",
            ]
        )
        == 0
    )
    assert "tests/unit/test_apart.py" in capsys.readouterr().out
    status = main(["--seed", "3", "--count", "20", "--files", "gateway/antiphon_gateway/apart.py"])
    printed = capsys.readouterr().out
    assert status == 1
    assert "seed 3: 4 of 4 mutants of 1 files" in printed
    assert "seed 3: 1 of 4 killed" in printed
    assert (
        "survived: gateway/antiphon_gateway/apart.py:2 comparison: age > 1 -> (age >= 1)" in printed
    )
