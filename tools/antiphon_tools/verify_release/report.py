"""The report. It is written to a JSON file and a Markdown file after every section."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = 1
ERROR, NOT_MEASURED, DOUBTS = "error", "not_measured", "doubts"
TITLES = {
    "checkpoint": "Checkpoint",
    "stages": "Stages",
    "reference": "Reference",
    "text": "Text, given the reference's answer",
    "codes": "Codes, given the reference's answer",
    "audio": "Audio of the reference's codes",
    "speed": "Speed of one session",
    "hearing": "Transcripts of spoken answers",
}


class VerificationReport:
    """The sections of the report by name. `doubts` contains sentences that describe problems."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path = path
        self.markdown = path.with_suffix(".md")
        self._content: dict[str, Any] = {"format": FORMAT, "facts": dict(facts), DOUBTS: []}
        self._write()

    @property
    def doubts(self) -> list[str]:
        """Sentences that describe problems."""
        found: list[str] = self._content[DOUBTS]
        return found

    def add(self, section: str, figures: Mapping[str, Any]) -> None:
        """Add a section and write the files."""
        self._content[section] = dict(figures)
        if ERROR in figures:
            self.doubts.append(f"{section}: {figures[ERROR]}")
        self._write()

    def doubt(self, sentence: str) -> None:
        """Add a sentence that describes a problem and write the files."""
        self.doubts.append(sentence)
        self._write()

    def _write(self) -> None:
        for path, text in (
            (self.path, json.dumps(self._content, indent=1, ensure_ascii=False) + "\n"),
            (self.markdown, self._readable()),
        ):
            written = path.with_name(f"{path.name}.part")
            written.write_text(text, "utf-8")
            os.replace(written, path)

    def _readable(self) -> str:
        lines = ["# Verification of a released checkpoint", ""]
        lines += [f"- {each}" for each in self.doubts] or ["No problems were found."]
        lines += ["", "## Machine", "", *_table(self._content["facts"])]
        for section, title in TITLES.items():
            if section in self._content:
                lines += ["", f"## {title}", "", *_table(self._content[section])]
        return "\n".join(lines) + "\n"


def _table(figures: Mapping[str, Any]) -> list[str]:
    rows = [f"| {name} | {_cell(value)} |" for name, value in figures.items()]
    return ["| figure | value |", "|---|---|", *rows]


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        text = ", ".join(f"{name}: {_cell(each)}" for name, each in value.items())
    elif isinstance(value, list):
        text = "; ".join(map(_cell, value)) or "none"
    elif isinstance(value, float):
        text = f"{value:.4g}"
    else:
        text = str(value)
    return text.replace("|", "\\|").replace("\n", " ")
