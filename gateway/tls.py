"""The gateway's certificate, as each door takes it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from antiphon.deployment.schema import TlsConfig
from antiphon.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What proves the gateway: for gRPC, and for HTTP."""

    grpc: grpc.ServerCredentials
    http: ssl.SSLContext


def server_tls(config: TlsConfig) -> ServerTls:
    """Read the files. Raises `InvalidArgument` for what is missing or does not fit together."""
    certificate = _read("certificate_file", config.certificate_file)
    key = _read("key_file", config.key_file)
    authorities = None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.certificate_file, config.key_file)
    except ssl.SSLError as error:
        raise _wrong("key_file", "is not the key of the certificate", error) from error
    if config.client_ca_file:
        authorities = _read("client_ca_file", config.client_ca_file)
        try:
            context.load_verify_locations(config.client_ca_file)
        except ssl.SSLError as error:
            raise _wrong("client_ca_file", "has no certificates", error) from error
        context.verify_mode = ssl.CERT_REQUIRED
    credentials = grpc.ssl_server_credentials(
        [(key, certificate)], authorities, require_client_auth=authorities is not None
    )
    return ServerTls(credentials, context)


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        field = f"gateway.tls.{name}"
        raise InvalidArgument(f"{field}: {path}: {error.strerror}", field=field) from error


def _wrong(name: str, why: str, error: ssl.SSLError) -> InvalidArgument:
    field = f"gateway.tls.{name}"
    return InvalidArgument(f"{field}: {why}: {error.reason or error}", field=field)
