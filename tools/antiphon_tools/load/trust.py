"""TLS settings for authenticating a service, and the credentials that are presented to it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from antiphon.client.connection import Tls
from antiphon.deployment.tls_config import STAGE_NAME, MutualTlsConfig
from antiphon.errors import InvalidArgument
from antiphon_tools.launcher.plan import GATEWAY


@dataclass(frozen=True, slots=True)
class Trust:
    """TLS settings for connections to a service.

    `authorities` is a PEM file with the authorities that sign its certificate. Defaults to the
    system's authorities. `certificate` and `key` are presented to services that require a client
    certificate. `stage_name` is the name in the certificate of a stage.
    """

    authorities: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    stage_name: str = STAGE_NAME

    def over_grpc(self, role: str = "") -> Tls:
        """Return the settings for the SDK. If `role` is set, they apply to the stage with this
        role.
        """
        return Tls(
            root_certificates=self.authorities,
            certificate_chain=self.certificate,
            private_key=self.key,
            server_name=self.stage_name.format(role=role) if role else "",
        )

    def over_http(self) -> ssl.SSLContext:
        """Return the context for an HTTPS connection.

        Raises `InvalidArgument` if a file does not contain certificates.
        """
        try:
            context = ssl.create_default_context(cafile=self.authorities)
        except OSError as error:
            raise InvalidArgument(f"--tls {self.authorities}: {error}", field="tls") from error
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key)
            except OSError as error:
                raise InvalidArgument(
                    f"--certificate {self.certificate}: {error}", field="certificate"
                ) from error
        return context


def services_trust(config: MutualTlsConfig) -> Trust:
    """Return the credentials that a deployment's gateway presents to its stages.

    The load test uses them because it takes the place of the gateway.
    """
    authorities, certificate, key = (
        Path(each.format(role=GATEWAY))
        for each in (config.authority_file, config.certificate_file, config.key_file)
    )
    return Trust(authorities, certificate, key, config.name)


def stage_tls(trust: Trust | None, role: str) -> Tls | bool:
    """Return the settings for a channel to the stage with this role."""
    return trust.over_grpc(role) if trust is not None else False
