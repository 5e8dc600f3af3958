"""Determines what to start from a deployment: overrides, roles and absolute paths."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from antiphon.deployment.address import host_and_port
from antiphon.deployment.environment import expanded
from antiphon.deployment.schema import Deployment, check_roles, deployment_of
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.graph import Pipeline
from antiphon.pipelines.registry import pipeline_for
from antiphon_tools.launcher.preflight import check_model_dir

GATEWAY = "gateway"
EMBEDDED_MODEL = "models/antiphon-demo"
"""The path of the small checkpoint in the repository, relative to its root."""
NICE_PER_STEP = 3
RESUME_KEY_BYTES = 32
REPLICA_MARK = "#"
"""Separates the stage name from the replica number in a process name."""

CHECKOUT = Path(__file__).parents[3]
"""The checkout that contains this file, unless it is installed."""
INSTALLED = Path(__file__).parents[2]
"""The directory that contains all packages if this file is installed (`site-packages`)."""
PYTHON = (sys.executable, "-P", "-u")
"""The interpreter of a service. Without -P, a directory in the working directory could shadow a
package.
"""
IMPORT_ROOTS = ("", "gateway", "services", "testkit", "tools")
"""The directories of a checkout from which packages are imported."""


def with_overrides(deployment: Deployment, overrides: Iterable[str]) -> Deployment:
    """Return the deployment with each `role.key=value` applied. The key of a setting in a group is
    `group.name`.

    Raises `InvalidArgument` for a malformed override, an unknown key or an invalid value.
    """
    content = msgspec.to_builtins(deployment)
    for override in overrides:
        path, equals, value = override.partition("=")
        role, dot, key = path.partition(".")
        if not (role and dot and key and equals):
            raise InvalidArgument(f"--stage {override}: must have the form ROLE.KEY=VALUE")
        *groups, leaf = key.split(".")
        settings = content["stages"].setdefault(role, {})
        for group in groups:
            settings = settings.setdefault(group, {})
            if not isinstance(settings, dict):
                raise InvalidArgument(f"--stage {override}: {group} is not a group of settings")
        settings[leaf] = value
    return deployment_of(content, strict=False)


def with_replicas(deployment: Deployment, counts: Iterable[str]) -> Deployment:
    """Return the deployment with the number of replicas of each `role=number`.

    Raises `InvalidArgument` if the format or a number is invalid.
    """
    overrides = []
    for count in counts:
        role, equals, number = count.partition("=")
        if not (role and equals and number.isdigit()):
            raise InvalidArgument(f"--replicas {count}: must have the form ROLE=NUMBER")
        overrides.append(f"{role}.replicas={number}")
    return with_overrides(deployment, overrides)


def replica_names(role: str, count: int) -> tuple[str, ...]:
    """Return the process names of a stage. The first process has the name of the stage."""
    return (role, *(f"{role}{REPLICA_MARK}{number}" for number in range(2, count + 1)))


def role_of(name: str) -> str:
    """Return the stage that a process runs, or `GATEWAY`."""
    return name.partition(REPLICA_MARK)[0]


def with_gateway(deployment: Deployment, changes: Mapping[str, object]) -> Deployment:
    """Return the deployment with changed gateway settings.

    In a group of settings, only the given settings are changed.
    """
    content = msgspec.to_builtins(deployment)
    gateway = content["gateway"]
    for name, value in changes.items():
        gateway[name] = gateway[name] | value if isinstance(value, dict) else value
    return deployment_of(content, strict=False)


def started_roles(
    deployment: Deployment, pipeline: Pipeline, only: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the stages to start on this machine.

    By default, these are all stages without addresses. If `only` is set, it contains the stages.
    Raises `InvalidArgument` if the pipeline does not have one of them.
    """
    for role in only:
        if role not in pipeline.roles:
            raise InvalidArgument(
                f"stages: {pipeline.name} has no stage {role}; its stages are "
                f"{', '.join(pipeline.roles)}"
            )
    return tuple(only) or tuple(
        role for role in pipeline.roles if not deployment.stage(role).addresses
    )


def listen_addresses(
    deployment: Deployment, roles: Sequence[str], *, gateway: bool = True
) -> dict[str, str]:
    """Return the listen addresses of the processes to start, by the setting that determines them.

    Raises `InvalidArgument` if several replicas would listen on the same port.
    """
    endpoints = deployment.gateway
    wanted = {
        "gateway.http_listen": endpoints.http_listen if gateway else "",
        "gateway.grpc_listen": endpoints.grpc_listen if gateway else "",
        "gateway.metrics_listen": endpoints.metrics_listen if gateway else "",
        "gateway.scaler.listen": endpoints.scaler.listen if gateway else "",
    }
    for role in roles:
        stage = deployment.stage(role)
        own = {
            f"stages.{role}.listen": stage.listen,
            f"stages.{role}.metrics_listen": stage.metrics_listen,
            f"stages.{role}.health_listen": stage.health_listen,
        }
        for field, address in own.items():
            check_shared(field, address, stage.replicas)
        wanted |= own
    return {field: address for field, address in wanted.items() if address}


def check_shared(field: str, address: str, count: int, what: str = "replicas") -> None:
    """Raise `InvalidArgument` if several processes would listen on the same port."""
    address = expanded(address, os.environ, field=field)
    if address and count > 1 and host_and_port(address, field=field)[1]:
        raise InvalidArgument(
            f"{field}: {count} {what} can't listen on the same port; use port 0, or 1 "
            f"{what.removesuffix('s')}",
            field=field,
        )


def with_addresses(deployment: Deployment, addresses: Mapping[str, tuple[str, ...]]) -> Deployment:
    """Return the deployment with the addresses of each stage's replicas."""
    stages = dict(deployment.stages)
    for role, found in addresses.items():
        stages[role] = msgspec.structs.replace(deployment.stage(role), addresses=found)
    return msgspec.structs.replace(deployment, stages=stages)


def with_resume_key(deployment: Deployment, path: Path) -> Deployment:
    """Return the deployment with a new resume key in `path`, unless it already specifies a key
    file.

    Without a key file, each gateway process generates its own key. After a restart, the new process
    then can't continue the previous process's conversations.
    """
    if deployment.gateway.resume.key_file:
        return deployment
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(RESUME_KEY_BYTES))
    return with_gateway(deployment, {"resume": {"key_file": str(path)}})


def with_priorities(deployment: Deployment, pipeline: Pipeline) -> Deployment:
    """Return the deployment with CPU priorities for stages that share the cores of one machine.

    Downstream stages have a higher priority, and the handling of messages has priority over all
    engines. Otherwise, a stage that is far ahead of playback would delay the first audio of other
    requests. Stages that run on an accelerator or have `engine_nice` set are not changed.
    """
    stages = dict(deployment.stages)
    for role in pipeline.roles:
        stage = deployment.stage(role)
        if stage.engine_nice is None and stage.device == "cpu":
            nice = NICE_PER_STEP * pipeline.steps_to_client(role)
            stages[role] = msgspec.structs.replace(stage, engine_nice=nice)
    return msgspec.structs.replace(deployment, stages=stages)


def resolve(deployment: Deployment, root: Path) -> tuple[Deployment, Pipeline]:
    """Return the deployment with an absolute model path and the pipeline that it runs.

    If there is no model, the embedded one is used. Raises `InvalidArgument` if the pipeline does
    not have one of the stages, as well as the errors of `embedded_model` and `pipeline_of`.
    """
    if deployment.model:
        model = Path(deployment.model).expanduser().resolve()
        check_model_dir(model)
    else:
        model = embedded_model(root)
    pipeline = pipeline_for(model, deployment.pipeline)
    check_roles(deployment, pipeline.name, pipeline.roles)
    return msgspec.structs.replace(deployment, model=str(model)), pipeline


def embedded_model(root: Path) -> Path:
    """Return the checkpoint that is included in antiphon.

    Raises `FailedPrecondition` if it does not exist.
    """
    path = (root / "antiphon_tools" if is_installed(root) else root) / EMBEDDED_MODEL
    if not (path / "config.json").is_file():
        raise FailedPrecondition(
            f"no model was specified, and the demonstration model was not found in {path}: set "
            "a checkpoint directory (--model), or clone the whole repository",
            field="model",
        )
    return path


def application_root(checkout: Path = CHECKOUT, *, gateway: bool = True) -> Path:
    """Return the directory that contains the services and, if needed, the gateway.

    It is a checkout, the directory of the image, or `site-packages`. An installed launcher uses the
    packages that are installed with it. Otherwise, the working directory is tried first, followed
    by `checkout`. Raises `FailedPrecondition` if neither of them contains the packages.
    """
    if is_installed(INSTALLED):
        return INSTALLED
    candidates = [Path.cwd(), checkout]
    stages = "services/antiphon_services"
    packages = (stages, "gateway/antiphon_gateway") if gateway else (stages,)
    for root in candidates:
        if all((root / name).is_dir() for name in packages):
            return root
    tried = " or ".join(str(root) for root in dict.fromkeys(candidates))
    raise FailedPrecondition(
        f"{' and '.join(f'`{name}`' for name in packages)} can't be found in {tried}; run the "
        "command in a checkout"
    )


def is_installed(root: Path) -> bool:
    """Return whether packages are directly below `root`, as in an installation with pip."""
    return (root / "antiphon_services").is_dir()


def working_directory(root: Path) -> Path:
    """Return the working directory of the processes.

    Relative paths in a deployment file are relative to this directory. It is the root of a
    checkout, or the user's working directory if antiphon is installed.
    """
    return Path.cwd() if is_installed(root) else root


def service_environment(root: Path) -> dict[str, str]:
    """Return the environment of a service that runs from `root`.

    Service processes never download models, because models are downloaded before any process
    starts.
    """
    return {**os.environ, "PYTHONPATH": import_path(root), "HF_HUB_OFFLINE": "1"}


def import_path(root: Path) -> str:
    """Return the `PYTHONPATH` for a process that imports the packages in `root`."""
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    return os.pathsep.join([*(str(root / each) for each in IMPORT_ROOTS), *inherited])
