"""The ID of a model on the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

MAIN = "main"
_PART = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?"
_HUB_ID = re.compile(rf"({_PART}/{_PART})(?:@([A-Za-z0-9][\w./-]*))?", re.ASCII)
_LONGEST = 96


@dataclass(frozen=True, slots=True)
class HubId:
    """A repository in the form `org/name` and its revision.

    The revision is a branch, a tag or a commit.
    """

    repository: str
    revision: str = MAIN

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}"

    @classmethod
    def read(cls, text: str) -> HubId | None:
        """Parse an ID in the form `org/name` or `org/name@revision`.

        Returns None for any other text, and for the path of an existing directory.
        """
        found = _HUB_ID.fullmatch(text)
        if found is None or Path(text).is_dir():
            return None
        repository, revision = found[1], found[2] or MAIN
        if len(repository) > _LONGEST or "--" in repository or ".." in text:
            return None
        return cls(repository, revision)

    def at(self, revision: str) -> HubId:
        """Return the ID with another revision. If `revision` is empty, nothing changes."""
        return replace(self, revision=revision) if revision else self
