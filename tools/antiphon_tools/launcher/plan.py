"""From what a person wrote to what is started: overrides, roles, absolute paths."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from antiphon.deployment.address import host_and_port
from antiphon.deployment.schema import Deployment, check_roles, deployment_of
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.graph import Pipeline
from antiphon.pipelines.registry import pipeline_for
from antiphon_tools.launcher.preflight import check_model_dir

GATEWAY = "gateway"
EMBEDDED_MODEL = "models/antiphon-demo"
"""The small checkpoint that comes with the repository, from its root."""
NICE_PER_STEP = 3
RESUME_KEY_BYTES = 32
REPLICA_MARK = "#"
"""Between a stage's name and a replica's number in the name of its process."""

CHECKOUT = Path(__file__).parents[3]
"""The one that this file lies in, unless it is installed."""
INSTALLED = Path(__file__).parents[2]
"""Where all packages lie side by side if this file is installed (`site-packages`)."""
IMPORT_ROOTS = ("", "gateway", "services", "testkit", "tools")
"""The directories of a checkout that packages are imported from."""


def with_overrides(deployment: Deployment, overrides: Iterable[str]) -> Deployment:
    """Return the deployment with each `role.key=value` applied.

    Raises `InvalidArgument` for a malformed override, an unknown key or an invalid value.
    """
    content = msgspec.to_builtins(deployment)
    for override in overrides:
        path, equals, value = override.partition("=")
        role, dot, key = path.partition(".")
        if not (role and dot and key and equals):
            raise InvalidArgument(f"--stage {override}: must look like ROLE.KEY=VALUE")
        content["stages"].setdefault(role, {})[key] = value
    return deployment_of(content, strict=False)


def with_replicas(deployment: Deployment, counts: Iterable[str]) -> Deployment:
    """The deployment with so many replicas of stages, each count as `role=number`.

    Raises `InvalidArgument` for another form or a count that cannot be.
    """
    overrides = []
    for count in counts:
        role, equals, number = count.partition("=")
        if not (role and equals and number.isdigit()):
            raise InvalidArgument(f"--replicas {count}: must look like ROLE=NUMBER")
        overrides.append(f"{role}.replicas={number}")
    return with_overrides(deployment, overrides)


def replica_names(role: str, count: int) -> tuple[str, ...]:
    """Of the processes of a stage: the first has the stage's own name."""
    return (role, *(f"{role}{REPLICA_MARK}{number}" for number in range(2, count + 1)))


def role_of(name: str) -> str:
    """The stage that a process runs, or `GATEWAY`."""
    return name.partition(REPLICA_MARK)[0]


def with_gateway(deployment: Deployment, changes: Mapping[str, object]) -> Deployment:
    """The deployment with these settings of the gateway; of a group those that are named."""
    content = msgspec.to_builtins(deployment)
    gateway = content["gateway"]
    for name, value in changes.items():
        gateway[name] = gateway[name] | value if isinstance(value, dict) else value
    return deployment_of(content, strict=False)


def started_roles(
    deployment: Deployment, pipeline: Pipeline, only: Sequence[str] = ()
) -> tuple[str, ...]:
    """The stages that are started here: `only` these, or all that have no addresses elsewhere.

    Raises `InvalidArgument` for one that the pipeline does not have.
    """
    for role in only:
        if role not in pipeline.roles:
            raise InvalidArgument(
                f"stages: {pipeline.name} has no {role}; it has {', '.join(pipeline.roles)}"
            )
    return tuple(only) or tuple(
        role for role in pipeline.roles if not deployment.stage(role).addresses
    )


def listen_addresses(
    deployment: Deployment, roles: Sequence[str], *, gateway: bool = True
) -> dict[str, str]:
    """Return the listen addresses of the processes to start, by the setting that determines them.

    Raises `InvalidArgument` if several replicas would listen on one port.
    """
    endpoints = deployment.gateway
    wanted = {
        "gateway.http_listen": endpoints.http_listen if gateway else "",
        "gateway.grpc_listen": endpoints.grpc_listen if gateway else "",
    }
    for role in roles:
        stage = deployment.stage(role)
        own = {
            f"stages.{role}.listen": stage.listen,
            f"stages.{role}.metrics_listen": stage.metrics_listen,
            f"stages.{role}.health_listen": stage.health_listen,
        }
        for field, address in own.items():
            _check_shared(field, address, stage.replicas)
        wanted |= own
    return {field: address for field, address in wanted.items() if address}


def _check_shared(field: str, address: str, replicas: int) -> None:
    if address and replicas > 1 and host_and_port(address, field=field)[1]:
        raise InvalidArgument(
            f"{field}: {replicas} replicas cannot listen on one port; give port 0, or 1 replica",
            field=field,
        )


def with_addresses(deployment: Deployment, addresses: Mapping[str, tuple[str, ...]]) -> Deployment:
    """The deployment with the addresses of each of these stages' replicas filled in."""
    stages = dict(deployment.stages)
    for role, found in addresses.items():
        stages[role] = msgspec.structs.replace(deployment.stage(role), addresses=found)
    return msgspec.structs.replace(deployment, stages=stages)


def with_resume_key(deployment: Deployment, path: Path) -> Deployment:
    """The deployment with a new resume key in `path`, unless it names a file of keys.

    A gateway without a file draws a key of its own, so one that is started again could not
    continue its predecessor's conversations.
    """
    if deployment.gateway.resume.key_file:
        return deployment
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(RESUME_KEY_BYTES))
    return with_gateway(deployment, {"resume": {"key_file": str(path)}})


def with_priorities(deployment: Deployment, pipeline: Pipeline) -> Deployment:
    """The deployment for stages that share one machine's cores: downstream stages get CPU
    priority, and messages before any engine.

    Otherwise a stage that is far ahead of what is being spoken delays the first audio. Stages
    on an accelerator, and those that have `engine_nice` set, stay as they are.
    """
    stages = dict(deployment.stages)
    for role in pipeline.roles:
        stage = deployment.stage(role)
        if stage.engine_nice is None and stage.device == "cpu":
            nice = NICE_PER_STEP * pipeline.steps_to_client(role)
            stages[role] = msgspec.structs.replace(stage, engine_nice=nice)
    return msgspec.structs.replace(deployment, stages=stages)


def resolve(deployment: Deployment, root: Path) -> tuple[Deployment, Pipeline]:
    """The deployment with an absolute model path, and the pipeline that it runs.

    Without a model it serves the embedded one. Raises `InvalidArgument` for a stage
    that the pipeline does not have, and what `embedded_model` and `pipeline_of` raise.
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
    """The checkpoint that comes with antiphon. Raises `FailedPrecondition` without it."""
    path = (root / "antiphon_tools" if is_installed(root) else root) / EMBEDDED_MODEL
    if not (path / "config.json").is_file():
        raise FailedPrecondition(
            f"no model was named, and the one that comes with antiphon is not in {path}: "
            "name a checkpoint directory (--model), or get the whole repository",
            field="model",
        )
    return path


def application_root(checkout: Path = CHECKOUT, *, gateway: bool = True) -> Path:
    """Return the directory with the services, and the gateway if needed: the checkout, the
    directory of the image, or `site-packages`.

    An installed launcher starts the packages installed with it. Otherwise the working directory is
    tried first, then `checkout`. Raises `FailedPrecondition`.
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
        f"{' and '.join(f'`{name}`' for name in packages)} are not in {tried}; run from a checkout"
    )


def is_installed(root: Path) -> bool:
    """Whether packages lie side by side there, as pip installs them."""
    return (root / "antiphon_services").is_dir()


def working_directory(root: Path) -> Path:
    """Return the working directory of the processes, the base of relative paths in a deployment
    file.

    It is the root of a checkout, or the user's working directory if antiphon is installed.
    """
    return Path.cwd() if is_installed(root) else root


def import_path(root: Path) -> str:
    """`PYTHONPATH` of a process that imports the packages of `root`, installed ones or not."""
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    return os.pathsep.join([*(str(root / each) for each in IMPORT_ROOTS), *inherited])
