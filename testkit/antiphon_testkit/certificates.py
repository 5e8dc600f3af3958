"""Creates certificates for TLS tests, using the `openssl` command."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from antiphon.deployment.tls_config import MutualTlsConfig

DAYS = "2"
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files with a certificate authority, and a certificate and key for both a server and a
    client.

    The server's certificate is valid for `localhost`, 127.0.0.1 and `speech.example`.
    """

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Create all files in a folder. Raises `CalledProcessError` if openssl fails."""
    authority, key = _authority(folder)
    names = "subjectAltName=DNS:localhost,DNS:speech.example,IP:127.0.0.1"
    made = [
        _signed(folder, name, authority, key, extension)
        for name, extension in (("server", names), ("client", "subjectAltName=DNS:client"))
    ]
    (server, server_key), (client, client_key) = made
    return Certificates(authority, server, server_key, client, client_key)


def make_service_certificates(folder: Path, roles: Iterable[str]) -> MutualTlsConfig:
    """Create certificates for mutual TLS between the services with these roles, including the
    gateway.

    Each call uses a new certificate authority. Raises `CalledProcessError` if openssl fails.
    """
    authority, key = _authority(folder)
    for role in roles:
        _signed(folder, role, authority, key, f"subjectAltName=DNS:{role}.antiphon")
    return MutualTlsConfig(
        certificate_file=str(folder / "{role}.pem"),
        key_file=str(folder / "{role}.key"),
        authority_file=str(authority),
    )


def _authority(folder: Path) -> tuple[Path, Path]:
    """Create a certificate authority, and return its certificate and key."""
    authority, key = folder / "authority.pem", folder / "authority.key"
    _openssl(
        *("req", "-x509", "-nodes", "-subj", "/CN=authority", "-days", DAYS, *_new_key(key)),
        *("-addext", "basicConstraints=critical,CA:TRUE", "-out", str(authority)),
    )
    return authority, key


def _signed(
    folder: Path, name: str, authority: Path, authority_key: Path, extension: str
) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    _openssl(
        *("req", "-x509", "-nodes", "-subj", f"/CN={name}", "-days", DAYS, *_new_key(key)),
        *("-CA", str(authority), "-CAkey", str(authority_key), "-addext", extension),
        *("-addext", "basicConstraints=critical,CA:FALSE", "-out", str(certificate)),
    )
    return certificate, key


def _new_key(key: Path) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", str(key))


def _openssl(*arguments: str) -> None:
    subprocess.run(("openssl", *arguments), check=True, capture_output=True, timeout=TIMEOUT_S)
