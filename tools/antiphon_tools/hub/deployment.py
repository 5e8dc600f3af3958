"""Replaces hub IDs in a deployment with directories before any process starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

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
"""The stage settings that can contain a hub ID."""


def with_directories(
    deployment: Deployment, settings: HubSettings, headers: Path | None = None
) -> Deployment:
    """Return the deployment with a directory in place of each hub ID.

    If `headers` is set, the directories are created in it and only contain the headers of weights.
    Clients can still request the model by its ID, unless the deployment sets another name. The
    pipeline's name is added, so that a process that only sees the directory chooses the same
    pipeline. Raises the errors of `fetch_checkpoint`, and `InvalidArgument` if a revision is given
    but the model is not an ID.
    """
    model = HubId.read(deployment.model)
    if model is None:
        if settings.revision:
            raise InvalidArgument(
                f"--revision {settings.revision}: can't be used with "
                f"{deployment.model or 'the embedded model'}, which is not a model on the hub "
                "(ORG/NAME)",
                field="revision",
            )
        return _with_companions(deployment, settings, headers)
    model = model.at(settings.revision)
    if headers is None:
        folder = fetch_checkpoint(model, settings, pipeline=deployment.pipeline)
    else:
        own = headers / model.repository
        folder = fetch_headers(model, settings, own, pipeline=deployment.pipeline)
    pipeline = pipeline_for(folder, deployment.pipeline, by_weights=False)
    found = msgspec.structs.replace(
        deployment,
        model=str(folder),
        model_name=deployment.model_name or model.repository,
        pipeline=pipeline.name,
    )
    for companion in pipeline.companions:
        if not (folder / companion.folder / CONFIG_FILE).is_file():
            found = _naming(found, companion, pipeline.roles)
    return _with_companions(found, settings, headers)


class LocalModel(NamedTuple):
    """The directory of a checkpoint and the name of its pipeline.

    The name is empty if the directory determines the pipeline.
    """

    directory: Path
    pipeline: str = ""


def local_model(model: str, settings: HubSettings) -> LocalModel:
    """Return the checkpoint that is given as a directory or a hub ID.

    Raises the errors of `with_directories`. Raises `FailedPrecondition` if the model requires a
    second repository, because this can only be specified in a stage's settings.
    """
    found = with_directories(Deployment(model=model), settings)
    if found.stages:
        raise FailedPrecondition(
            f"model: {model} requires a second repository, whose name is unknown; download it "
            "to a folder with its original name next to a copy of the model's directory, and "
            "use this directory",
            field="model",
        )
    return LocalModel(Path(found.model), found.pipeline)


def _naming(deployment: Deployment, companion: Companion, roles: tuple[str, ...]) -> Deployment:
    """Return the deployment with the released companion in all stages that do not specify one."""
    stages = dict(deployment.stages)
    for role in roles:
        stage = deployment.stage(role)
        if not getattr(stage.files, companion.setting):
            stages[role] = _with_file(stage, companion.setting, companion.hub_id)
    return msgspec.structs.replace(deployment, stages=stages)


def _with_companions(
    deployment: Deployment, settings: HubSettings, headers: Path | None
) -> Deployment:
    """Return the deployment with a directory in place of each tokenizer ID."""
    stages: dict[str, StageConfig] = {}
    folders: dict[HubId, Path] = {}
    settings = replace(settings, revision="")
    for role, stage in deployment.stages.items():
        for setting in TOKENIZER_SETTINGS:
            companion = HubId.read(getattr(stage.files, setting))
            if companion is not None:
                if companion not in folders:
                    folders[companion] = _companion_folder(companion, settings, headers)
                stage = _with_file(stage, setting, str(folders[companion]))
        stages[role] = stage
    return msgspec.structs.replace(deployment, stages=stages)


def _with_file(stage: StageConfig, setting: str, directory: str) -> StageConfig:
    files = msgspec.structs.replace(stage.files, **{setting: directory})
    return msgspec.structs.replace(stage, files=files)


def _companion_folder(companion: HubId, settings: HubSettings, headers: Path | None) -> Path:
    if headers is None:
        return fetch_companion(companion, settings)
    return fetch_companion_headers(companion, settings, headers / companion.repository)
