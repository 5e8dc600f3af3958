"""How a service with TLS is known to be the right one, and what it is shown."""

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
    """The authorities that sign its certificate: those of a PEM file, or the system's; and the
    load test's own certificate and key, for services that ask for one. `stage_name` is the name in
    a stage's certificate."""

    authorities: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    stage_name: str = STAGE_NAME

    def over_grpc(self, role: str = "") -> Tls:
        """For the SDK; of a stage by its role."""
        return Tls(
            root_certificates=self.authorities,
            certificate_chain=self.certificate,
            private_key=self.key,
            server_name=self.stage_name.format(role=role) if role else "",
        )

    def over_http(self) -> ssl.SSLContext:
        """For a connection. Raises `InvalidArgument` for a file that has no certificates."""
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
    """What a deployment's gateway shows its stages; the load test does to them what it does."""
    authorities, certificate, key = (
        Path(each.format(role=GATEWAY))
        for each in (config.authority_file, config.certificate_file, config.key_file)
    )
    return Trust(authorities, certificate, key, config.name)


def stage_tls(trust: Trust | None, role: str) -> Tls | bool:
    """For a channel to the stage of a role."""
    return trust.over_grpc(role) if trust is not None else False
