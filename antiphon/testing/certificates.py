"""Certificates for tests of TLS, made by the `openssl` command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

DAYS = "2"
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: an authority's certificate, and a server's and a client's with their keys.

    The server's is for `localhost`, 127.0.0.1 and `speech.example`.
    """

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make all files in a folder. Raises `CalledProcessError` when openssl fails."""
    authority, key = folder / "authority.pem", folder / "authority.key"
    _openssl(
        *("req", "-x509", "-nodes", "-subj", "/CN=authority", "-days", DAYS, *_new_key(key)),
        *("-addext", "basicConstraints=critical,CA:TRUE", "-out", str(authority)),
    )
    names = "subjectAltName=DNS:localhost,DNS:speech.example,IP:127.0.0.1"
    made = [
        _signed(folder, name, authority, key, extension)
        for name, extension in (("server", names), ("client", "subjectAltName=DNS:client"))
    ]
    (server, server_key), (client, client_key) = made
    return Certificates(authority, server, server_key, client, client_key)


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
