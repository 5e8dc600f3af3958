"""Pages and docstrings keep the limits of `antiphon_tools.wording`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from antiphon_tools.wording import (
    DOCSTRING_LIMITS,
    LONG_WORDS,
    PATTERNS,
    docstrings,
    faults_of_docstrings,
    faults_of_pages,
    pages,
    sentences_of,
)

PLAIN = "The gateway rejects the request and names the field. "


def test_pages_are_written_plainly() -> None:
    measured = pages()
    assert {Path("README.md"), Path("docs/glossary.md")} <= {s.path for s in measured.sentences}
    faults = faults_of_pages(measured)
    assert not faults, "\n".join(faults)


def test_docstrings_do_not_get_worse() -> None:
    faults = faults_of_docstrings({folder: docstrings(folder) for folder in DOCSTRING_LIMITS})
    assert not faults, "\n".join(faults)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("person", "Whoever asks is refused."),
        ("archaic", "Meanwhile the stage loads."),
        ("speech", "The stage tells the gateway."),
        ("place", "The queue is beside the engine."),
        ("of which", "A call of which nothing is left ends."),
        ("where", "Where the queue is full, it waits."),
    ],
)
def test_each_pattern_is_found_with_its_page_and_line(
    checkout: Path, name: str, sentence: str
) -> None:
    page = checkout / "page.md"
    page.write_text(f"# Title\n\n{PLAIN * 3}\n")
    assert faults_of_pages(pages(checkout)) == []
    page.write_text(f"# Title\n\n{PLAIN * 3}\n- {sentence}\n")
    (fault,) = faults_of_pages(pages(checkout))
    assert fault.startswith(f"{name}: ")
    assert f"page.md:4: {sentence}" in fault


def test_long_sentences_are_found(checkout: Path) -> None:
    long = "The stage sends " + "very " * LONG_WORDS + "large chunks."
    (checkout / "page.md").write_text(f"{PLAIN * 7}\n\n{long} {long}\n")
    (fault,) = faults_of_pages(pages(checkout))
    assert f"page.md:3: {long}" in fault


@pytest.mark.parametrize(
    "code",
    ["```\nnobody\n```\n", "  ```\n  nobody\n  ```\n", "`nobody`\n", "[a](nobody.md)\n"],
)
def test_code_and_addresses_are_not_measured(code: str) -> None:
    text = f"{PLAIN}\n\n{code}\nThe next line.\n"
    sentences = list(sentences_of(Path("page.md"), text))
    assert "nobody" not in " ".join(each.text for each in sentences)
    assert sentences[-1].line == text.splitlines().index("The next line.") + 1


def test_a_wrapped_line_does_not_open_a_clause() -> None:
    (sentence,) = sentences_of(Path("page.md"), "The page names the place\nwhere it ends.\n")
    assert not PATTERNS["where"].words.search(sentence.text)


def test_docstrings_are_measured_and_code_is_not(checkout: Path) -> None:
    module = checkout / "antiphon" / "module.py"
    module.parent.mkdir()
    module.write_text(
        '"""A queue.\n\nNobody waits."""\n\n\ndef everybody() -> str:\n    return "whoever"\n'
    )
    measured = docstrings("antiphon", checkout)
    assert [str(each) for each in measured.matching(PATTERNS["person"])] == [
        "antiphon/module.py:3: Nobody waits."
    ]
    (fault,) = faults_of_docstrings({"antiphon": measured})
    assert "antiphon/module.py" in fault
