"""How a gateway with TLS is known to be the right one."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from antiphon.client.connection import Tls
from antiphon.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Trust:
    """The authorities that sign its certificate: those of a PEM file, or the system's."""

    authorities: Path | None = None

    def over_grpc(self) -> Tls:
        """For the SDK."""
        return Tls(root_certificates=self.authorities)

    def over_http(self) -> ssl.SSLContext:
        """For a connection. Raises `InvalidArgument` for a file that has no certificates."""
        try:
            return ssl.create_default_context(cafile=self.authorities)
        except OSError as error:
            raise InvalidArgument(f"--tls {self.authorities}: {error}", field="tls") from error
