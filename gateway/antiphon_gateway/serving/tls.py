"""The gateway's certificate, as each endpoint takes it.

Certificates are renewed while the gateway runs. Each handshake looks whether the files have
changed and reads them again; connections that are open keep what they began with.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from antiphon.deployment.tls_config import TlsConfig
from antiphon.errors import InvalidArgument
from antiphon.transport.renewed_files import RenewedFiles


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What proves the gateway: for gRPC (HTTP/2), and for HTTP."""

    grpc: ssl.SSLContext
    http: ssl.SSLContext


def server_tls(config: TlsConfig) -> ServerTls:
    """Read the files. Raises `InvalidArgument` for what is missing or does not fit together."""
    paths = (config.certificate_file, config.key_file, config.client_ca_file)
    files = RenewedFiles(filter(None, paths), lambda: _read_identity(config))

    def use_newest_grpc(
        connection: ssl.SSLSocket | ssl.SSLObject, _: str | None, __: ssl.SSLContext
    ) -> None:
        connection.context = files.now().grpc

    def use_newest_http(
        connection: ssl.SSLSocket | ssl.SSLObject, _: str | None, __: ssl.SSLContext
    ) -> None:
        connection.context = files.now().http

    files.holds.grpc.sni_callback = use_newest_grpc
    files.holds.http.sni_callback = use_newest_http
    return files.holds


def _read_identity(config: TlsConfig) -> ServerTls:
    """Read the files. Raises `InvalidArgument`."""
    return ServerTls(_context(config, "h2"), _context(config, "http/1.1"))


def _context(config: TlsConfig, protocol: str) -> ssl.SSLContext:
    """A context for connections with that ALPN protocol. Raises `InvalidArgument`."""
    for name in ("certificate_file", "key_file"):
        _read(name, getattr(config, name))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols([protocol])
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
    return context


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
