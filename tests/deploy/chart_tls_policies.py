"""Policies of the certificates by which services prove themselves to each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from antiphon.transport.mutual_tls import GATEWAY
from tests.deploy.chart_colocation import stages_of
from tests.deploy.chart_policies import Faults, policy
from tests.deploy.chart_rendering import Rendered

IN_THE_SECRET = {"certificate_file": "tls.crt", "key_file": "tls.key", "authority_file": "ca.crt"}


def services(rendered: Rendered) -> Iterator[tuple[set[str], dict[str, Any], dict[str, Any]]]:
    """The roles of every container that has any, with its pod and itself."""
    for pod in rendered.pods().values():
        for container in pod["containers"]:
            is_gateway = container.get("command", [])[:3] == ["python", "-m", "antiphon_gateway"]
            if roles := {GATEWAY} if is_gateway else set(stages_of(container)):
                yield roles, pod, container


def certificates_of(pod: dict[str, Any], container: dict[str, Any], folder: str) -> dict[str, str]:
    """The Secrets that a container has below a folder, by where they are; those that it could
    change, or that would not be renewed, are left out."""
    secrets = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
    return {
        mount["mountPath"]: secrets[mount["name"]]["secretName"]
        for mount in container["volumeMounts"]
        if mount["mountPath"].startswith(folder)
        and mount["name"] in secrets
        and mount.get("readOnly")
        and "subPath" not in mount
    }


@policy
def services_have_their_own_certificates(rendered: Rendered) -> Faults:
    tls = rendered.deployment_file().mutual_tls
    if tls is None:
        return
    owners: dict[str, str] = {}
    for roles, pod, container in services(rendered):
        files = {name: PurePosixPath(getattr(tls, name)) for name in IN_THE_SECRET}
        folder = str(files["key_file"].parent).partition("{")[0]
        found = certificates_of(pod, container, folder)
        for name, path in files.items():
            if path.name != IN_THE_SECRET[name]:
                yield f"{name}: {path} is not in a Secret of type kubernetes.io/tls"
            if {str(path.parent).format(role=role) for role in roles} != set(found):
                yield f"{container['name']} has the {name} of others, or not its own"
        for path, secret in found.items():
            if owners.setdefault(secret, path) != path:
                yield f"{container['name']} has a Secret of another role"


@policy
def certificates_are_those_that_services_want(rendered: Rendered) -> Faults:
    certificates = rendered.of_kind("Certificate")
    if not certificates:
        return
    tls = rendered.deployment_file().mutual_tls
    assert tls is not None
    made = {each["spec"]["secretName"]: each["spec"] for each in certificates.values()}
    if len(made) != len(certificates):
        yield "two certificates have one Secret"
    for roles, pod, container in services(rendered):
        folder = str(PurePosixPath(tls.key_file).parent)
        found = certificates_of(pod, container, folder.partition("{")[0])
        for role in roles:
            spec = made.get(found.get(folder.format(role=role), ""), {})
            if spec.get("dnsNames") != [tls.name.format(role=role)]:
                yield f"{role} gets no certificate with its name"
            if not {"server auth", "client auth"} <= set(spec.get("usages", ())):
                yield f"{role} may not ask and be asked with its certificate"
