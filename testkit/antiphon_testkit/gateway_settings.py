"""Lets tests set nested gateway settings by a single name, for example `max_waiting` for
`queue.max_waiting`.
"""

from __future__ import annotations

from typing import Any

from antiphon.deployment.gateway_config import GATEWAY_SETTINGS, GatewayConfig
from antiphon_testkit.flat_settings import changed


def gateway_config(**settings: Any) -> GatewayConfig:
    """Return the default configuration with these settings changed. See `flat_settings.changed` for
    the names.
    """
    return with_settings(GatewayConfig(), **settings)


def with_settings(config: GatewayConfig, **settings: Any) -> GatewayConfig:
    """Return a copy of `config` with these settings changed. See `flat_settings.changed` for the
    names.
    """
    return changed(config, GATEWAY_SETTINGS, settings)
