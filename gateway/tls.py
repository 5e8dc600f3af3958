"""The gateway's certificate, as each door takes it.

Certificates are renewed while the gateway runs. Each handshake looks whether the files have
changed and reads them again; connections that are open keep what they began with. Files that do
not fit together, as between two writes of them, change nothing until they do.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc

from antiphon.deployment.schema import TlsConfig
from antiphon.errors import InvalidArgument

log = logging.getLogger("gateway.tls")

_Stamps = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What proves the gateway: for gRPC, and for HTTP."""

    grpc: grpc.ServerCredentials
    http: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class _Identity:
    """What the files hold, and the context that was made of them."""

    grpc: grpc.ServerCertificateConfiguration
    http: ssl.SSLContext


class _Files:
    """Reads the files when they have changed. Any thread may ask: gRPC's handshakes have theirs."""

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._reading = threading.Lock()
        self._stamps = _stamps_of(config)
        self.holds = _read_identity(config)

    def now(self) -> _Identity:
        """What holds now."""
        with self._reading:
            if (stamps := _stamps_of(self._config)) != self._stamps:
                self._stamps = stamps
                try:
                    self.holds = _read_identity(self._config)
                except InvalidArgument as error:
                    log.error("the certificate that held before holds on: %s", error.message)
                else:
                    log.info("read the certificate again: %s", self._config.certificate_file)
            return self.holds


class _GrpcIdentity:
    """Tells gRPC what has changed since it asked last."""

    def __init__(self, files: _Files) -> None:
        self._files = files
        self._told = files.holds

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        holds = self._files.now()
        if holds is self._told:
            return None
        self._told = holds
        return holds.grpc


def server_tls(config: TlsConfig) -> ServerTls:
    """Read the files. Raises `InvalidArgument` for what is missing or does not fit together."""
    files = _Files(config)

    def use_newest(
        connection: ssl.SSLSocket | ssl.SSLObject, _: str | None, __: ssl.SSLContext
    ) -> None:
        connection.context = files.now().http

    files.holds.http.sni_callback = use_newest
    credentials = grpc.dynamic_ssl_server_credentials(
        files.holds.grpc,
        # Typed without None, which says that nothing has changed.
        cast("Callable[[], grpc.ServerCertificateConfiguration]", _GrpcIdentity(files)),
        require_client_authentication=bool(config.client_ca_file),
    )
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


def _stamps_of(config: TlsConfig) -> _Stamps:
    """What changes with the files, also where they are links to others, as mounted secrets are."""
    files = (config.certificate_file, config.key_file, config.client_ca_file)
    return tuple(_stamp_of(file) for file in files if file)


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


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
