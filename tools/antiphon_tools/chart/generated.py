"""Generates files of the chart from the pipeline declarations and the deployment schema.

`pipelines.yaml` contains the roles of this repository's pipelines, the dtype of stages that support
only one, and the name of the pipeline for the embedded model. Templates cannot read the
declarations themselves.

The values `stages.<role>.config`, `gateway.config` and `mutualTls.config` are passed on unchanged.
Their keys, types, limits and defaults are only defined in `antiphon/deployment` (`schema.py`,
`stage_config.py`, `gateway_config.py` and `tls_config.py`). The corresponding parts of
`values.schema.json` are generated from these definitions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from antiphon.deployment.auth_config import (
    AuthConfig,
    IdentityLimits,
    JwtConfig,
    TrustedProxyConfig,
)
from antiphon.deployment.gateway_config import GATEWAY_SETTINGS
from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from antiphon.deployment.stage_config import STAGE_SETTINGS
from antiphon.deployment.tls_config import MutualTlsConfig
from antiphon.pipelines.registry import own_pipelines, pipeline_of
from antiphon_tools.launcher.plan import CHECKOUT, EMBEDDED_MODEL

CHART = CHECKOUT / "helm" / "antiphon"
SCHEMA = CHART / "values.schema.json"
HEAD = "# Made from antiphon/pipelines by `make chart`: each pipeline's stages, and fixed dtypes.\n"
# The same pattern as in `stages`.
ROLE = "^[a-z][a-z0-9_]{0,20}[a-z0-9]$"
# Settings that the chart determines, such as listen addresses, discovery and file paths.
DECIDED_BY_CHART = {
    *("addresses", "replicas", "listen", "advertise", "metrics_listen", "health_listen"),
    *("http_listen", "grpc_listen"),
    "tls",
    "discovery",
    "sharing",
    *("certificate_file", "key_file", "authority_file"),
}


AUTH_PARTS = (AuthConfig, TrustedProxyConfig, JwtConfig, IdentityLimits)
"""The parts of `gateway.config.auth`."""


def pipelines_file() -> str:
    """Return the expected content of `pipelines.yaml`."""
    pipelines = sorted(own_pipelines().items())
    content = {
        "embedded": pipeline_of(CHECKOUT / EMBEDDED_MODEL).name,
        "stages": {name: pipeline.roles for name, pipeline in pipelines},
        "dtypes": {
            name: dtypes
            for name, pipeline in pipelines
            if (dtypes := {stage.role: stage.dtype for stage in pipeline.stages if stage.dtype})
        },
    }
    return HEAD + msgspec.yaml.encode(content).decode()


def values_schema() -> str:
    """Return the expected content of `values.schema.json`.

    It is the content of the current file with updated definitions.
    """
    schema = json.loads(SCHEMA.read_text())
    schema["definitions"].update(_product_definitions())
    schema["definitions"]["colocated"] = _colocated(schema["definitions"]["stage"])
    return json.dumps(schema, indent=2) + "\n"


def _colocated(stage: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a pod that runs several stages.

    It is the schema of a stage without the properties that are specific to a single stage.
    """
    properties = {name: each for name, each in stage["properties"].items() if name != "config"}
    role = {"type": "string", "pattern": ROLE}
    stages = {"type": "array", "items": role, "minItems": 2, "uniqueItems": True}
    own = {"stages": stages, "accelerators": {"enum": ["own", "shared", "claimed"]}}
    return stage | {"properties": own | properties, "required": ["stages"]}


FILES: dict[Path, Callable[[], str]] = {
    CHART / "pipelines.yaml": pipelines_file,
    SCHEMA: values_schema,
}


def _product_definitions() -> dict[str, Any]:
    """Return the definitions by name, as JSON Schema."""
    groups = GATEWAY_SETTINGS.groups.items(), STAGE_SETTINGS.groups.items()
    configured = [each for name, each in chain(*groups) if name not in DECIDED_BY_CHART]
    parts: tuple[type[msgspec.Struct], ...] = (*configured, *AUTH_PARTS)
    return {
        "stageConfig": _config(StageConfig),
        "gatewayConfig": _config(GatewayConfig),
        **{part.__name__: _definition(part) for part in parts},
        "mutualTlsConfig": _config(MutualTlsConfig),
        "delivery": _definition(Deployment)["properties"]["delivery"] | {"default": {}},
    }


def _definition(model: type) -> dict[str, Any]:
    _, definitions = msgspec.json.schema_components((model,), ref_template="#/definitions/{name}")
    definition: dict[str, Any] = definitions[model.__name__]
    return definition


def _config(model: type) -> dict[str, Any]:
    properties = {
        name: schema
        for name, schema in _definition(model)["properties"].items()
        if name not in DECIDED_BY_CHART
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}
