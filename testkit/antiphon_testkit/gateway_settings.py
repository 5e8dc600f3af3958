"""Gateways' settings by one name each, such as `max_waiting` for `queue.max_waiting`."""

from __future__ import annotations

from typing import Any

from antiphon.deployment.gateway_config import GATEWAY_SETTINGS, GatewayConfig
from antiphon_testkit.flat_settings import changed


def gateway_config(**settings: Any) -> GatewayConfig:
    """The defaults, with these settings changed; names as in `flat_settings.changed`."""
    return with_settings(GatewayConfig(), **settings)


def with_settings(config: GatewayConfig, **settings: Any) -> GatewayConfig:
    """A copy of `config` with these settings changed; names as in `flat_settings.changed`."""
    return changed(config, GATEWAY_SETTINGS, settings)
