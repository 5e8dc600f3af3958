"""Where the weights come from: a claim that the chart makes, and a download."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.chart_rendering import REGISTRY, Rendered, Values, render

THINKER, GATEWAY = "demo-antiphon-thinker", "demo-antiphon-gateway"
COMMAND = ["fetch", "$(MODEL_DIRECTORY)"]


def downloading(source: str = "claim", **download: Any) -> Rendered:
    settings: Values = {"enabled": True, "command": COMMAND} | download
    model = {"source": source, "pipeline": "qwen3_omni", "directory": "checkpoint"}
    claim = {"existingClaim": "weights"} if source == "existingClaim" else {}
    return render({"model": model | claim | {"download": settings}})


def init(rendered: Rendered) -> dict[str, Any]:
    found: list[dict[str, Any]] = rendered.pods()[THINKER]["initContainers"]
    (container,) = found
    return container


def model_volume(rendered: Rendered, name: str = THINKER) -> dict[str, Any]:
    volumes = rendered.pods()[name]["volumes"]
    found: dict[str, Any] = next(each for each in volumes if each["name"] == "model")
    return found


def test_the_claim_is_of_the_size_and_class_that_were_asked_for() -> None:
    volume = {"size": "60Gi", "storageClassName": "fast", "accessModes": ["ReadWriteOnce"]}
    model = {"source": "claim", "pipeline": "qwen3_omni", "volume": volume}
    rendered = render({"model": model, "stages": {"talker": {"modelClaim": "own"}}})
    (claim,) = rendered.of_kind("PersistentVolumeClaim").values()
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "60Gi"}},
    }
    name = claim["metadata"]["name"]
    assert model_volume(rendered)["persistentVolumeClaim"]["claimName"] == name
    talker = model_volume(rendered, "demo-antiphon-talker")
    assert talker["persistentVolumeClaim"]["claimName"] == "own"
    assert not any("initContainers" in pod for pod in rendered.pods().values())


def test_no_claim_is_made_unless_it_is_asked_for() -> None:
    assert not render().of_kind("PersistentVolumeClaim")
    assert not downloading("existingClaim").of_kind("PersistentVolumeClaim")


@pytest.mark.parametrize("source", ["claim", "existingClaim", "emptyDir"])
def test_a_download_fills_the_volume_before_the_stage_starts(source: str) -> None:
    rendered = downloading(source)
    download = init(rendered)
    assert download["command"] == COMMAND
    assert {"name": "MODEL_DIRECTORY", "value": "/models/checkpoint"} in download["env"]
    assert rendered.deployment_file().model == "/models/checkpoint"
    (stage,) = rendered.pods()[THINKER]["containers"]
    assert download["image"] == stage["image"]
    assert download["resources"] == stage["resources"]
    assert "initContainers" not in rendered.pods()[GATEWAY]
    assert "fsGroup" not in rendered.pods()[GATEWAY]["securityContext"]


def test_weights_in_the_pod_are_bounded() -> None:
    assert model_volume(downloading("emptyDir"))["emptyDir"] == {"sizeLimit": "100Gi"}


def test_a_download_has_an_image_a_token_and_variables_of_its_own() -> None:
    image, variable = f"{REGISTRY}/fetch:1", {"name": "MIRROR", "value": "here"}
    secret = {"existingSecret": "hub", "secretKey": "key"}
    download = init(downloading(image=image, env=[variable], **secret))
    assert download["image"] == image
    assert variable in download["env"]
    (token,) = (each for each in download["env"] if each["name"] == "HF_TOKEN")
    assert token["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "key"}}
    assert "HF_TOKEN" not in {each["name"] for each in init(downloading())["env"]}


def test_an_accelerator_is_not_asked_for_twice() -> None:
    model = {"source": "claim", "pipeline": "qwen3_omni"}
    download = {"enabled": True, "command": COMMAND}
    accelerator = {"accelerator": {"type": "nvidia"}}
    rendered = render({"model": model | {"download": download}, "stageDefaults": accelerator})
    assert "nvidia.com/gpu" not in init(rendered)["resources"]["limits"]
