"""The files of the chart that are made from the declarations and the deployment schema.

`pipelines.yaml` has the roles of this repository's pipelines, the dtypes of stages that compute
in one alone, and which pipeline serves the embedded model: templates cannot read declarations.

`stages.<role>.config`, `gateway.config` and `mutualTls.config` are passed on as they are, so their
keys, types, bounds and defaults have one definition, in `antiphon/deployment` (`schema.py`,
`gateway_config.py` and `tls_config.py`), from which these parts of `values.schema.json` come.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from antiphon.deployment.auth_config import (
    AuthConfig,
    IdentityLimits,
    JwtConfig,
    TrustedProxyConfig,
)
from antiphon.deployment.gateway_config import GROUPS
from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from antiphon.deployment.tls_config import MutualTlsConfig
from antiphon.pipelines.registry import own_pipelines, pipeline_of
from antiphon_tools.launcher.plan import CHECKOUT, EMBEDDED_MODEL

CHART = CHECKOUT / "helm" / "antiphon"
SCHEMA = CHART / "values.schema.json"
HEAD = "# Made from antiphon/pipelines by `make chart`: each pipeline's stages, and fixed dtypes.\n"
# As `stages` has it.
ROLE = "^[a-z][a-z0-9_]{0,20}[a-z0-9]$"
# What the chart decides itself: where a process listens and is found, and where files lie.
DECIDED_BY_CHART = {
    *("addresses", "replicas", "listen", "advertise", "metrics_listen", "health_listen"),
    *("http_listen", "grpc_listen"),
    "tls",
    "discovery",
    *("certificate_file", "key_file", "authority_file"),
}


AUTH_PARTS = (AuthConfig, TrustedProxyConfig, JwtConfig, IdentityLimits)
"""What `gateway.config.auth` consists of."""


def pipelines_file() -> str:
    """`pipelines.yaml` as it should be."""
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
    """`values.schema.json` as it should be: its own text with the product's definitions."""
    schema = json.loads(SCHEMA.read_text())
    schema["definitions"].update(_product_definitions())
    schema["definitions"]["colocated"] = _colocated(schema["definitions"]["stage"])
    return json.dumps(schema, indent=2) + "\n"


def _colocated(stage: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a pod of several stages: that of a stage, without the properties per
    stage."""
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
    """The definitions by name, as JSON Schema."""
    parts: tuple[type[msgspec.Struct], ...] = (*GROUPS.values(), *AUTH_PARTS)
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
