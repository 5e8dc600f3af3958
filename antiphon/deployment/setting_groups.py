"""Groups of settings and error messages for settings that don't exist."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from antiphon.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class SettingGroups:
    """A settings struct, its groups by name, and the settings that no longer exist.

    `withdrawn` maps each removed setting, as a path of group and name, to its replacement. The
    group is empty if the setting was never in a group.
    """

    kind: type[msgspec.Struct]
    groups: Mapping[str, type[msgspec.Struct]]
    withdrawn: Mapping[str, str] = field(default_factory=dict)

    def grouped_path(self, name: str) -> tuple[str, str] | None:
        """Return the group and the current name of a setting, given the name it had before settings
        were grouped. Returns None if there is no such setting.

        The old name was either the current name, or the group followed by the current name. For
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
        """Return what has replaced a removed setting, or None if there was no such setting. The
        setting is given by its group and name, or by the name it had before settings were grouped.
        """
        for path, replacement in self.withdrawn.items():
            group, _, leaf = path.partition(".")
            flat = name == leaf and self.grouped_path(name) is None
            if flat or name in (path, f"{group}_{leaf}"):
                return replacement
        return None

    def check(self, content: object, where: str) -> None:
        """Raise `InvalidArgument` if a key, whether in a group or not, is not the name of a
        setting. `where` is the path of the settings, such as `gateway`.

        If the key is a name from before settings were grouped, the error message contains its
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
        """Return the part of the error message that explains an unknown key."""
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
        return "unknown setting" + (
            f"; did you mean {leaves[close[0]]}?"
            if close
            else f"; use one of: {', '.join(self.kind.__struct_fields__)}"
        )


def check_keys(content: object, kind: type[msgspec.Struct], where: str) -> None:
    """Raise `InvalidArgument` if `content` contains a key that is not a field of the struct."""
    known = kind.__struct_fields__
    for key in content if isinstance(content, dict) else ():
        if key not in known:
            meant = probably(key, known) or f"; use one of: {', '.join(known)}"
            raise InvalidArgument(f"{where}{key}: unknown setting{meant}", field=f"{where}{key}")


def probably(name: object, known: Sequence[str]) -> str:
    """Return a "did you mean" question with the known name that is closest to `name`. Returns an
    empty string if no name is close enough.
    """
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _no_longer(now: str) -> str:
    return f"is no longer a setting, because it was replaced by {now}; remove it"
