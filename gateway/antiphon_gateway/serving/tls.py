"""The gateway's certificate, in the form that each endpoint requires.

Certificates can be renewed while the gateway is running. Each handshake checks whether the files
have changed and reloads them if so. Connections that are already open keep using their original
certificate.
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
    """The gateway's certificate, for gRPC (HTTP/2) and for HTTP."""

    grpc: ssl.SSLContext
    http: ssl.SSLContext


def server_tls(config: TlsConfig) -> ServerTls:
    """Read the files. Raises `InvalidArgument` if a file is missing or if the files don't match."""
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
    """Read the files. Raises `InvalidArgument` if they are invalid."""
    return ServerTls(_context(config, "h2"), _context(config, "http/1.1"))


def _context(config: TlsConfig, protocol: str) -> ssl.SSLContext:
    """Return a context for connections that use this ALPN protocol. Raises `InvalidArgument` if the
    files are invalid.
    """
    for name in ("certificate_file", "key_file"):
        _read(name, getattr(config, name))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols([protocol])
    try:
        context.load_cert_chain(config.certificate_file, config.key_file)
    except (OSError, ssl.SSLError) as error:
        raise _wrong("key_file", "doesn't match the certificate", error) from error
    if config.client_ca_file:
        authorities = _read("client_ca_file", config.client_ca_file)
        try:
            context.load_verify_locations(cadata=authorities.decode("ascii"))
        # `ValueError` is raised if a file is empty or isn't text.
        except (ValueError, ssl.SSLError) as error:
            raise _wrong("client_ca_file", "contains no certificates", error) from error
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
