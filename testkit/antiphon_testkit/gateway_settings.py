"""Gateways' settings by one name each, such as `max_waiting` for `queue.max_waiting`."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from msgspec import structs

from antiphon.deployment.gateway_config import GatewayConfig, grouped_path


def gateway_config(**settings: Any) -> GatewayConfig:
    """The defaults, with these settings changed.

    A name is that of a setting in a group if no other group has it, or has the group's before it:
    `queue_timeout_s` is `queue.timeout_s`.
    """
    return with_settings(GatewayConfig(), **settings)


def with_settings(config: GatewayConfig, **settings: Any) -> GatewayConfig:
    """A copy of `config` with these settings changed; names as in `gateway_config`."""
    changed: dict[str, Any] = {}
    grouped: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in settings.items():
        if name in GatewayConfig.__struct_fields__:
            changed[name] = value
            continue
        path = grouped_path(name)
        if path is None:
            raise TypeError(f"no setting {name} of a gateway, or more than one")
        grouped[path[0]][path[1]] = value
    for group, values in grouped.items():
        own = changed.get(group, getattr(config, group))
        changed[group] = structs.replace(own, **values)
    return structs.replace(config, **changed)
