"""Replaces the hub's ids in a deployment by directories, before any process starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from antiphon.deployment.schema import Deployment, StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.files import CONFIG_FILE
from antiphon.pipelines.graph import Companion
from antiphon.pipelines.registry import pipeline_for
from antiphon_tools.hub.checkpoint import (
    fetch_checkpoint,
    fetch_companion,
    fetch_companion_headers,
    fetch_headers,
)
from antiphon_tools.hub.hub_id import HubId
from antiphon_tools.hub.settings import HubSettings

TOKENIZER_SETTINGS = "audio_tokenizer_dir", "image_tokenizer_dir"
"""Settings of a stage that may have an id of the hub."""


def with_directories(
    deployment: Deployment, settings: HubSettings, headers: Path | None = None
) -> Deployment:
    """The deployment with a directory in place of each id of the hub.

    With a folder for `headers`, directories are made in it which have the headers of weights alone.
    The model keeps its id as the name that clients ask for, unless the deployment has another one.
    Raises what `fetch_checkpoint` does, and `InvalidArgument` for a revision of what is no id.
    """
    model = HubId.read(deployment.model)
    if model is None:
        if settings.revision:
            raise InvalidArgument(
                f"--revision {settings.revision}: {deployment.model or 'the embedded model'} is "
                "no id of the hub (org/name)",
                field="revision",
            )
        return _with_companions(deployment, settings, headers)
    model = model.at(settings.revision)
    if headers is None:
        folder = fetch_checkpoint(model, settings, pipeline=deployment.pipeline)
    else:
        own = headers / model.repository
        folder = fetch_headers(model, settings, own, pipeline=deployment.pipeline)
    found = msgspec.structs.replace(
        deployment, model=str(folder), model_name=deployment.model_name or model.repository
    )
    pipeline = pipeline_for(folder, deployment.pipeline)
    for companion in pipeline.companions:
        if not (folder / companion.folder / CONFIG_FILE).is_file():
            found = _naming(found, companion, pipeline.roles)
    return _with_companions(found, settings, headers)


def model_directory(model: str, settings: HubSettings) -> Path:
    """The directory of a checkpoint that is a directory or an id of the hub.

    Raises what `with_directories` does, and `FailedPrecondition` for a model of the hub whose
    second repository a stage's setting would have to name.
    """
    found = with_directories(Deployment(model=model), settings)
    if found.stages:
        raise FailedPrecondition(
            f"model: {model} needs a second repository, which this command cannot name; put its "
            "files into the folder of the released name beside a copy of the model's directory, "
            "and give that directory",
            field="model",
        )
    return Path(found.model)


def _naming(deployment: Deployment, companion: Companion, roles: tuple[str, ...]) -> Deployment:
    """The deployment whose stages all name the companion, those that name none the released one."""
    stages = dict(deployment.stages)
    for role in roles:
        stage = deployment.stage(role)
        if not getattr(stage, companion.setting):
            stages[role] = msgspec.structs.replace(stage, **{companion.setting: companion.hub_id})
    return msgspec.structs.replace(deployment, stages=stages)


def _with_companions(
    deployment: Deployment, settings: HubSettings, headers: Path | None
) -> Deployment:
    """The deployment with a directory in place of each id of a tokenizer."""
    stages: dict[str, StageConfig] = {}
    folders: dict[HubId, Path] = {}
    settings = replace(settings, revision="")
    for role, stage in deployment.stages.items():
        for setting in TOKENIZER_SETTINGS:
            companion = HubId.read(getattr(stage, setting))
            if companion is not None:
                if companion not in folders:
                    folders[companion] = _companion_folder(companion, settings, headers)
                stage = msgspec.structs.replace(stage, **{setting: str(folders[companion])})
        stages[role] = stage
    return msgspec.structs.replace(deployment, stages=stages)


def _companion_folder(companion: HubId, settings: HubSettings, headers: Path | None) -> Path:
    if headers is None:
        return fetch_companion(companion, settings)
    return fetch_companion_headers(companion, settings, headers / companion.repository)
