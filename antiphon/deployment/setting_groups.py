"""Settings that are arranged in groups, and the errors for settings that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from antiphon.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class SettingGroups:
    """A struct of settings, its groups by name, and its former settings.

    `withdrawn` maps the group and the name of a former setting to what has replaced it. An empty
    group stands for a setting that was never in a group.
    """

    kind: type[msgspec.Struct]
    groups: Mapping[str, type[msgspec.Struct]]
    withdrawn: Mapping[str, str] = field(default_factory=dict)

    def grouped_path(self, name: str) -> tuple[str, str] | None:
        """Return the group and the name of a setting, given its former name, which had no group.
        The result is None if there is no such setting.

        The former name is either the present name or the present name preceded by its group. For
        example, `max_waiting` is now `queue.max_waiting`, and `queue_timeout_s` is now
        `queue.timeout_s`.
        """
        for group, kind in self.groups.items():
            leaf = name.removeprefix(f"{group}_")
            if leaf != name and leaf in kind.__struct_fields__:
                return group, leaf
        found = [group for group, kind in self.groups.items() if name in kind.__struct_fields__]
        return (found[0], name) if len(found) == 1 else None

    def replacement(self, name: str) -> str | None:
        """Return what has replaced a former setting, given its group and name or its flat name."""
        for path, replacement in self.withdrawn.items():
            group, _, leaf = path.partition(".")
            flat = name == leaf and self.grouped_path(name) is None
            if flat or name in (path, f"{group}_{leaf}"):
                return replacement
        return None

    def check(self, content: object, where: str) -> None:
        """Raise `InvalidArgument` if there is no setting with one of the given keys, outside or
        inside a group. `where` is the place of the settings, such as `gateway`.

        If the key is the name that a setting had before settings were grouped, the error names its
        group.
        """
        if not isinstance(content, dict):
            return
        for name in content:
            if name not in self.kind.__struct_fields__:
                raise InvalidArgument(
                    f"{where}.{name}: {self._meant(str(name), where)}", field=f"{where}.{name}"
                )
        for group, kind in self.groups.items():
            inner = content.get(group)
            for name in inner if isinstance(inner, dict) else ():
                if name not in kind.__struct_fields__ and (
                    now := self.replacement(f"{group}.{name}")
                ):
                    place = f"{where}.{group}.{name}"
                    raise InvalidArgument(f"{place}: {_no_longer(now)}", field=place)
            check_keys(inner, kind, f"{where}.{group}.")

    def _meant(self, name: str, where: str) -> str:
        """Return what an unknown key probably stands for."""
        if now := self.replacement(name):
            return _no_longer(now)
        if path := self.grouped_path(name):
            return f"is now {where}.{'.'.join(path)}"
        leaves = {
            leaf: f"{where}.{group}.{leaf}"
            for group, kind in self.groups.items()
            for leaf in kind.__struct_fields__
        }
        leaves |= {name: f"{where}.{name}" for name in self.kind.__struct_fields__}
        close = difflib.get_close_matches(name, leaves, n=1)
        return "there is no such setting" + (
            f"; did you mean {leaves[close[0]]}?"
            if close
            else f"; there are {', '.join(self.kind.__struct_fields__)}"
        )


def check_keys(content: object, kind: type[msgspec.Struct], where: str) -> None:
    """Raise `InvalidArgument` if the struct has no field with one of the keys in the content."""
    known = kind.__struct_fields__
    for key in content if isinstance(content, dict) else ():
        if key not in known:
            meant = probably(key, known) or f"; there are {', '.join(known)}"
            raise InvalidArgument(
                f"{where}{key}: there is no such setting{meant}", field=f"{where}{key}"
            )


def probably(name: object, known: Sequence[str]) -> str:
    """Return a question that names the known name closest to `name`, or an empty text."""
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _no_longer(now: str) -> str:
    return f"is no longer a setting, but {now}; remove it"
