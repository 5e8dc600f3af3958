"""Mutual TLS between the services of a deployment.

Every service has a certificate that was issued by the deployment's CA and contains the name of the
service's role, such as `gateway.antiphon`. Clients verify that the name in the server's certificate
belongs to the intended stage, and servers verify that the caller is authorized. Files are reloaded
when they change, so each server handshake and each new channel uses their current content.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from antiphon.deployment.tls_config import MutualTlsConfig
from antiphon.errors import InvalidArgument, Unauthenticated
from antiphon.transport.renewed_files import RenewedFiles, renewed_credentials

GATEWAY = "gateway"
"""The role name of the gateway."""
NAMES_KEY = "x509_subject_alternative_name"
FIELD = "mutual_tls"

ChannelOptions = Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class _ServiceIdentity:
    certificate: bytes
    key: bytes
    authority: bytes

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """Return the configuration for a server."""
        return grpc.ssl_server_certificate_configuration(
            [(self.key, self.certificate)], self.authority
        )


class ServiceTls:
    """The TLS identity of a role. Raises `InvalidArgument` if the certificate and the key don't
    match.
    """

    def __init__(self, config: MutualTlsConfig, role: str) -> None:
        self._config = config
        paths = [
            each.format(role=role)
            for each in (config.certificate_file, config.key_file, config.authority_file)
        ]
        self._files = RenewedFiles(paths, lambda: _read_identity(*paths))

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return server credentials that require clients to have a certificate issued by the CA."""
        return renewed_credentials(
            self._files, lambda holds: holds.configuration(), callers_show_one=True
        )

    def channel(self, address: str, role: str, options: ChannelOptions) -> grpc.aio.Channel:
        """Open a channel to the service of a role. If the server's certificate contains a different
        name, the connection fails.
        """
        holds = self._files.now()
        credentials = grpc.ssl_channel_credentials(holds.authority, holds.key, holds.certificate)
        named = (*options, ("grpc.ssl_target_name_override", self.name_of(role)))
        return grpc.aio.secure_channel(address, credentials, named)

    def name_of(self, role: str) -> str:
        """Return the name that a role's service has in its certificate."""
        return self._config.name.format(role=role)

    def check(self, context: Any, roles: Collection[str]) -> None:
        """Raise `Unauthenticated` if the caller's certificate doesn't contain the name of an
        authorized role.

        Wherever the gateway is authorized, operators are authorized as well.
        """
        names = {each.decode() for each in context.auth_context().get(NAMES_KEY, ())}
        allowed = {self.name_of(role) for role in roles}
        if GATEWAY in roles:
            allowed |= set(self._config.operators)
        if not names & allowed:
            raise Unauthenticated(
                f"{', '.join(sorted(names)) or 'a caller without a name'} is not allowed to "
                f"call this method; allowed: {', '.join(sorted(allowed))}"
            )


def service_tls(config: MutualTlsConfig | None, role: str) -> ServiceTls | None:
    """Return a role's identity, or None if the deployment doesn't use TLS. Raises the same errors
    as `ServiceTls`.
    """
    return None if config is None else ServiceTls(config, role)


def open_channel(
    tls: ServiceTls | None, address: str, role: str, options: ChannelOptions
) -> grpc.aio.Channel:
    """Open a channel to the service of a role, using mutual TLS if it is configured."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options)
    return tls.channel(address, role, options)


def _read_identity(certificate_file: str, key_file: str, authority_file: str) -> _ServiceIdentity:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate_file, key_file)
    except FileNotFoundError as error:
        missing = certificate_file if not Path(certificate_file).exists() else key_file
        raise _wrong("certificate_file, key_file", f"{missing} does not exist") from error
    except (OSError, ssl.SSLError) as error:
        raise _wrong("key_file", f"{key_file} doesn't match the certificate") from error
    try:
        context.load_verify_locations(authority_file)
    except (OSError, ssl.SSLError) as error:
        raise _wrong("authority_file", f"{authority_file} contains no certificate") from error
    paths = (certificate_file, key_file, authority_file)
    try:
        return _ServiceIdentity(*(Path(each).read_bytes() for each in paths))
    except OSError as error:
        raise _wrong("certificate_file, key_file", f"{error.filename}: {error.strerror}") from error


def _wrong(name: str, why: str) -> InvalidArgument:
    field = f"{FIELD}.{name}"
    return InvalidArgument(f"{field}: {why}", field=field)
