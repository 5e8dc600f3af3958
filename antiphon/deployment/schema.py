"""The YAML schema of a deployment file. The launcher, all processes and the chart read this file.

Unknown keys and values that are out of range are reported as errors at startup. They are never
silently replaced by defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from antiphon.deployment.allowed_values import with_allowed_values
from antiphon.deployment.auth_config import AuthConfig, JwtConfig, TrustedProxyConfig
from antiphon.deployment.discovery import DiscoveryConfig as DiscoveryConfig
from antiphon.deployment.gateway_config import GATEWAY_SETTINGS
from antiphon.deployment.gateway_config import GatewayConfig as GatewayConfig
from antiphon.deployment.setting_groups import check_keys, probably
from antiphon.deployment.stage_config import STAGE_SETTINGS
from antiphon.deployment.stage_config import StageConfig as StageConfig
from antiphon.deployment.tls_config import MutualTlsConfig, TlsConfig
from antiphon.deployment.yaml_file import read_yaml
from antiphon.errors import InvalidArgument

DeliveryName = Literal["stream", "whole"]


class Deployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model, its stages by role, and the gateway.

    `model` is the checkpoint's directory. For `antiphon serve`, it may also be an ID on the Hugging
    Face hub, such as `org/name` or `org/name@revision`. `model_name` is the name that clients use.
    If it is empty, it is the name of the directory, or `org/name`. `pipeline` is the name of the
    pipeline. If it is empty, the checkpoint determines the pipeline.
    """

    model: str = ""
    model_name: str = ""
    pipeline: str = ""
    stages: dict[str, StageConfig] = {}
    gateway: GatewayConfig = GatewayConfig()
    # Encryption and authentication between the services. Without it, use the services only in
    # trusted networks. The ports for probes and metrics are never encrypted.
    mutual_tls: MutualTlsConfig | None = None
    # Overrides the delivery that the pipeline declares, by edge.
    delivery: dict[str, DeliveryName] = {}

    def stage(self, role: str) -> StageConfig:
        """Return the configuration of a stage. If the stage isn't in the file, its defaults are
        returned.
        """
        return self.stages.get(role, StageConfig())


def load_deployment(path: Path) -> Deployment:
    """Read and validate a deployment file. If it isn't valid, `InvalidArgument` is raised with the
    invalid key.
    """
    return read_yaml(path, deployment_of, name=str(path))


def deployment_of(content: object, *, strict: bool = True) -> Deployment:
    """Convert mappings to a deployment. Unless `strict` is true, text is converted to a number
    wherever a number is required.

    If a key isn't valid, `InvalidArgument` is raised with that key. If the key doesn't exist, the
    error also suggests a similar one.
    """
    if isinstance(content, dict):
        check_keys(content, Deployment, "")
        gateway = content.get("gateway")
        if isinstance(gateway, dict):
            GATEWAY_SETTINGS.check(gateway, "gateway")
            check_keys(gateway.get("tls"), TlsConfig, "gateway.tls.")
            check_keys(gateway.get("discovery"), DiscoveryConfig, "gateway.discovery.")
            auth = gateway.get("auth")
            check_keys(auth, AuthConfig, "gateway.auth.")
            if isinstance(auth, dict):
                for name, kind in (("trusted_proxy", TrustedProxyConfig), ("jwt", JwtConfig)):
                    check_keys(auth.get(name), kind, f"gateway.auth.{name}.")
        check_keys(content.get("mutual_tls"), MutualTlsConfig, "mutual_tls.")
        stages = content.get("stages")
        for role, stage in stages.items() if isinstance(stages, dict) else ():
            STAGE_SETTINGS.check(stage, f"stages.{role}")
            _converted(stage, StageConfig, f"stages.{role}", strict=strict)
    return _converted(content, Deployment, "", strict=strict)


def check_roles(deployment: Deployment, pipeline: str, roles: Sequence[str]) -> None:
    """Raise `InvalidArgument` if the deployment contains a stage that the pipeline doesn't have."""
    for role in deployment.stages:
        if role not in roles:
            raise InvalidArgument(
                f"stages: {pipeline} has no stage {role}; its stages are "
                f"{', '.join(roles)}{probably(role, roles)}",
                field=f"stages.{role}",
            )


Struct = TypeVar("Struct", bound=msgspec.Struct)


def _converted(content: object, kind: type[Struct], where: str, *, strict: bool) -> Struct:
    try:
        return msgspec.convert(content, kind, strict=strict)
    except msgspec.ValidationError as error:
        # msgspec appends the path within the value to its error message, as in " - at `$.slots`".
        fault, _, path = str(error).partition(" - at `$")
        path = path.rstrip("`")
        fault = with_allowed_values(fault, kind, path)
        field = f"{where}{path}".lstrip(".")
        raise InvalidArgument(f"{field}: {fault}" if field else fault, field=field) from error


def dump_deployment(deployment: Deployment) -> bytes:
    """Return the deployment as YAML."""
    return msgspec.yaml.encode(deployment)
