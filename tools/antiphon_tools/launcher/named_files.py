"""Finds files and directories that a deployment names but that its services couldn't use.

The services check the content of these files when they start.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from antiphon.errors import FailedPrecondition
from antiphon_tools.launcher.plan import GATEWAY

FILE, DIRECTORY = "file", "directory"
WRITTEN = "gateway.sharing.directory"
"""The setting whose directory the gateways write to."""


def check_named_files(
    deployment: Deployment, roles: Iterable[str], directory: Path, *, gateway: bool
) -> None:
    """Raise `FailedPrecondition` for the first file or directory that can't be used by the stages
    in `roles` or, if `gateway` is true, by the gateway.

    `directory` is the working directory of the services, which relative paths refer to.
    """
    services = [*roles, GATEWAY] if gateway else list(roles)
    for field, kind, name in _named(deployment, services):
        if name and (fault := _fault(directory / name, kind, written=field == WRITTEN)):
            use = "write to" if field == WRITTEN else "read"
            raise FailedPrecondition(
                f"{field}: {directory / name}: {fault}; set it to a {kind} that this user can "
                f"{use}",
                field=field,
            )


def _named(deployment: Deployment, services: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the setting, the kind and the path of each file or directory."""
    for service in services:
        if service == GATEWAY:
            yield from _gateway_files(deployment.gateway)
        else:
            yield from _stage_directories(service, deployment.stage(service))
        if mutual := deployment.mutual_tls:
            for name in ("certificate_file", "key_file", "authority_file"):
                path = getattr(mutual, name).format(role=service)
                yield f"mutual_tls.{name}", FILE, path


def _stage_directories(role: str, config: StageConfig) -> Iterator[tuple[str, str, str]]:
    for name in ("audio_tokenizer_dir", "image_tokenizer_dir", "voice_dir"):
        yield f"stages.{role}.files.{name}", DIRECTORY, getattr(config.files, name)


def _gateway_files(config: GatewayConfig) -> Iterator[tuple[str, str, str]]:
    yield "gateway.keys_file", FILE, config.keys_file
    yield "gateway.resume.key_file", FILE, config.resume.key_file
    yield WRITTEN, DIRECTORY, config.sharing.directory
    if config.auth.jwt:
        yield "gateway.auth.jwt.jwks_file", FILE, config.auth.jwt.jwks_file
    if config.tls:
        for name in ("certificate_file", "key_file", "client_ca_file"):
            yield f"gateway.tls.{name}", FILE, getattr(config.tls, name)


def _fault(path: Path, kind: str, *, written: bool) -> str:
    """Return why a path can't be used, or an empty string if it can.

    A file isn't opened, because this would block or disturb the writer if it is a FIFO.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return error.strerror or str(error)
    if stat.S_ISDIR(mode) != (kind == DIRECTORY):
        return f"is not a {kind}"
    needed = os.R_OK | (os.X_OK if kind == DIRECTORY else 0) | (os.W_OK if written else 0)
    return "" if os.access(path, needed) else os.strerror(errno.EACCES)
