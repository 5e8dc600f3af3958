"""The gateway's certificate, as each door takes it.

Certificates are renewed while the gateway runs. Each handshake looks whether the files have
changed and reads them again; connections that are open keep what they began with.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from antiphon.deployment.tls_config import TlsConfig
from antiphon.errors import InvalidArgument
from antiphon.transport.renewed_files import RenewedFiles, renewed_credentials


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What proves the gateway: for each address of gRPC, and for HTTP."""

    grpc: Callable[[], grpc.ServerCredentials]
    http: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class _Identity:
    """What the files hold, and the context that was made of them."""

    grpc: grpc.ServerCertificateConfiguration
    http: ssl.SSLContext


def server_tls(config: TlsConfig) -> ServerTls:
    """Read the files. Raises `InvalidArgument` for what is missing or does not fit together."""
    paths = (config.certificate_file, config.key_file, config.client_ca_file)
    files = RenewedFiles(filter(None, paths), lambda: _read_identity(config))

    def credentials() -> grpc.ServerCredentials:
        return renewed_credentials(
            files, lambda holds: holds.grpc, callers_show_one=bool(config.client_ca_file)
        )

    def use_newest(
        connection: ssl.SSLSocket | ssl.SSLObject, _: str | None, __: ssl.SSLContext
    ) -> None:
        connection.context = files.now().http

    files.holds.http.sni_callback = use_newest
    return ServerTls(credentials, files.holds.http)


def _read_identity(config: TlsConfig) -> _Identity:
    """Read the files. Raises `InvalidArgument`."""
    certificate = _read("certificate_file", config.certificate_file)
    key = _read("key_file", config.key_file)
    authorities = None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.certificate_file, config.key_file)
    except (OSError, ssl.SSLError) as error:
        raise _wrong("key_file", "is not the key of the certificate", error) from error
    if config.client_ca_file:
        authorities = _read("client_ca_file", config.client_ca_file)
        try:
            context.load_verify_locations(cadata=authorities.decode("ascii"))
        except (ValueError, ssl.SSLError) as error:  # the first of an empty file, or no text
            raise _wrong("client_ca_file", "has no certificates", error) from error
        context.verify_mode = ssl.CERT_REQUIRED
    configuration = grpc.ssl_server_certificate_configuration([(key, certificate)], authorities)
    return _Identity(configuration, context)


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        field = f"gateway.tls.{name}"
        raise InvalidArgument(f"{field}: {path}: {error.strerror}", field=field) from error


def _wrong(name: str, why: str, error: Exception) -> InvalidArgument:
    field = f"gateway.tls.{name}"
    said = error.reason if isinstance(error, ssl.SSLError) else None
    return InvalidArgument(f"{field}: {why}: {said or error}", field=field)
