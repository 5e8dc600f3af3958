"""The certificates that the services of a deployment use to authenticate to clients and to each
other.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

STAGE_NAME = "{role}.antiphon"
"""The default DNS name in the certificate of a role's service."""


class MutualTlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The certificates with which the services authenticate to each other. All files are in PEM
    format.

    In a path or a name, `{role}` is replaced by the role of the service. The role of the gateway is
    "gateway".
    """

    # The certificate of the service. It is used for calls in both directions.
    certificate_file: str
    # The private key of the service.
    key_file: str
    # The certificates of the CA that has issued the certificates of all services.
    authority_file: str
    # The DNS name in the certificate of each service.
    name: Annotated[str, msgspec.Meta(min_length=1)] = STAGE_NAME
    # The DNS names of other clients that have the same rights on the stages as the gateway, such as
    # load tests.
    operators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `ValueError` if all services would have the same name, or if something else than
        `{role}` is in braces.
        """
        for field in ("certificate_file", "key_file", "authority_file", "name"):
            try:
                getattr(self, field).format(role="")
            except (AttributeError, LookupError, ValueError) as error:
                raise ValueError(
                    f"{field}: only {{role}} can be in braces; write {{{{ or }}}} for a brace"
                ) from error
        if "{role}" not in self.name:
            raise ValueError("name must contain {role}, so that services can be distinguished")


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The certificate with which the gateway authenticates to clients. All files are in PEM format
    and are read again when they change.
    """

    # The certificate, followed by the intermediate certificates of its CA.
    certificate_file: str
    # The private key.
    key_file: str
    # The certificates of CAs for client certificates. If this is set, clients at both endpoints
    # must have a certificate issued by one of these CAs. This includes probes of /health. If it is
    # empty, no client certificate is required.
    client_ca_file: str = ""
