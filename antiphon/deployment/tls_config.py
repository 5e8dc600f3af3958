"""How a deployment's services prove themselves, to clients and to each other."""

from __future__ import annotations

from typing import Annotated

import msgspec

STAGE_NAME = "{role}.antiphon"
"""The DNS name in the certificate of a role's service, unless the deployment says another."""


class MutualTlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the services prove themselves to each other. Files are PEM; `{role}` in a path or name is
    the role of the service, which is "gateway" for the gateway."""

    # The service's certificate and key, for calls that it makes and that it answers; and the
    # certificates of the authority that has signed those of all services.
    certificate_file: str
    key_file: str
    authority_file: str
    # The DNS name in each service's certificate, and those of others that may do on stages what
    # the gateway does, such as load tests.
    name: Annotated[str, msgspec.Meta(min_length=1)] = STAGE_NAME
    operators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `ValueError` for a name that all services would share."""
        if "{role}" not in self.name:
            raise ValueError("name must contain {role}: it is what tells the services apart")


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the gateway proves itself to clients. Files are PEM, and are read at its start."""

    # The certificate, followed by those between it and its authority's, and its key.
    certificate_file: str
    key_file: str
    # Certificates of authorities: clients must show a certificate that one of them has signed, at
    # both endpoints, so probes of /health as well. Empty: clients show none.
    client_ca_file: str = ""
