"""Lets tests set nested settings by a single name, for example `max_waiting` for a gateway's
`queue.max_waiting`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from antiphon.deployment.schema import StageConfig
from antiphon.deployment.setting_groups import SettingGroups
from antiphon.deployment.stage_config import STAGE_SETTINGS

ConfigT = TypeVar("ConfigT", bound=msgspec.Struct)


def stage_config(**settings: Any) -> StageConfig:
    """Return a stage's default configuration with these settings changed. See `changed` for the
    names.
    """
    return changed(StageConfig(), STAGE_SETTINGS, settings)


def changed(config: ConfigT, known: SettingGroups, settings: dict[str, Any]) -> ConfigT:
    """Return a copy of `config` with these settings changed.

    If only one group contains a setting, its name is sufficient. Otherwise, or if you prefer,
    prefix it with the name of the group: `queue_timeout_s` is `queue.timeout_s`.
    """
    values: dict[str, Any] = {}
    grouped: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in settings.items():
        if name in known.kind.__struct_fields__:
            values[name] = value
            continue
        path = known.grouped_path(name)
        if path is None:
            raise TypeError(f"no setting {name} of {known.kind.__name__}, or more than one")
        grouped[path[0]][path[1]] = value
    for group, inner in grouped.items():
        own = values.get(group, getattr(config, group))
        values[group] = structs.replace(own, **inner)
    return structs.replace(config, **values)
