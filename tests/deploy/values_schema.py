"""The parts of the chart's values.schema.json that come from the deployment schema.

`stages.<role>.config` and `gateway.config` are passed on as they are, so their
keys, types, bounds and defaults have one definition: antiphon/deployment/schema.py.
Run this file to write them into the chart again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig

SCHEMA = Path(__file__).parents[2] / "helm" / "antiphon" / "values.schema.json"
# What the chart decides itself: where a process listens and is found.
DECIDED_BY_CHART = {"addresses", "listen", "metrics_listen", "http_listen", "grpc_listen"}


def product_definitions() -> dict[str, Any]:
    """The definitions by name, as JSON Schema."""
    return {
        "stageConfig": _config(StageConfig),
        "gatewayConfig": _config(GatewayConfig),
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


def main() -> None:
    """Write the definitions into values.schema.json."""
    schema = json.loads(SCHEMA.read_text())
    schema["definitions"].update(product_definitions())
    SCHEMA.write_text(json.dumps(schema, indent=2) + "\n")


if __name__ == "__main__":
    main()
