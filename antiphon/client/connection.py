"""A client's connection: address, TLS, keepalive and authentication."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from os import PathLike
from urllib.parse import urlsplit

import grpc

from antiphon.client import checks
from antiphon.client.checks import MAX_MESSAGE_BYTES
from antiphon.errors import InvalidArgument

# While a call waits, an unreachable gateway is detected within the sum of the two. gRPC also uses
# the second for other pings, with a default of a minute.
KEEPALIVE_TIME_MS = 10_000
PING_TIMEOUT_MS = 10_000

# Reconnect interval, shorter than the client's retry interval (`Retry`). gRPC's default grows to
# two minutes.
FIRST_RECONNECT_MS = 100
MAX_RECONNECT_MS = 500
# Timeout for an address that does not answer, such as that of a deleted pod. The default is 20 s.
CONNECT_TIMEOUT_MS = 5_000
# Minimum interval between DNS lookups. The default of 30 s would hide a new pod's address.
RESOLVE_EVERY_MS = 1_000

Options = tuple[tuple[str, int | str], ...]
Metadata = tuple[tuple[str, str], ...]

CHANNEL_OPTIONS: Options = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", FIRST_RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_MS),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.dns_min_time_between_resolutions_ms", RESOLVE_EVERY_MS),
)

MOST_READ_AHEAD_BYTES = 64 << 20
# HTTP/2's flow control window per call, which gRPC otherwise adapts to the network.
_WINDOW = "grpc.http2.lookahead_bytes"

File = bytes | str | PathLike[str]


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings of a connection. All files are PEM.

    Each is given as bytes or a path. `root_certificates` defaults to gRPC's built-in roots.
    `certificate_chain` and `private_key` are the client's certificate, for servers that require
    one. `server_name` is the name in the server's certificate, if it differs from the address.

    >>> antiphon.Client("speech.example:443", tls=antiphon.Tls(root_certificates="ca.pem"))
    """

    root_certificates: File | None = None
    certificate_chain: File | None = None
    private_key: File | None = field(default=None, repr=False)
    server_name: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """Return channel credentials. Raises `InvalidArgument` for an unreadable file."""
        if (self.certificate_chain is None) != (self.private_key is None):
            raise InvalidArgument(
                "tls: certificate_chain and private_key go together", field="tls.private_key"
            )
        return grpc.ssl_channel_credentials(
            _pem("tls.root_certificates", self.root_certificates),
            _pem("tls.private_key", self.private_key),
            _pem("tls.certificate_chain", self.certificate_chain),
        )


@dataclass(slots=True)
class Contact:
    """Whether a server at an address has ever answered with a message or a typed error."""

    made: bool = False


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """A server's address and the settings of a channel to it. Without credentials it is
    unencrypted.

    The metadata is sent with every call. The channel's calls set `contact`.
    """

    address: str
    options: Options
    credentials: grpc.ChannelCredentials | None = None
    metadata: Metadata = field(default=(), repr=False)
    contact: Contact = field(default_factory=Contact, compare=False)


def target(
    address: object,
    tls: bool | Tls,
    api_key: str | None,
    *,
    key_in_clear: bool,
    read_ahead_bytes: int | None = None,
    options: Options = CHANNEL_OPTIONS,
) -> ServerTarget:
    """Return the checked target of a client. Raises `InvalidArgument`."""
    where = checks.address(address)
    if not isinstance(tls, bool | Tls):
        raise checks.wrong_type("tls", "True, False or a Tls", tls)
    how = Tls() if tls is True else tls or None
    metadata: Metadata = ()
    if api_key is not None:
        metadata = (("authorization", f"Bearer {_key(api_key)}"),)
        if how is None and not key_in_clear and not is_local(where):
            raise InvalidArgument(
                f"api_key: would go to {where} unencrypted; give tls, or key_in_clear=True where "
                "the network may read it",
                field="api_key",
            )
    if read_ahead_bytes is not None:
        most = checks.number_between("read_ahead_bytes", read_ahead_bytes, 1, MOST_READ_AHEAD_BYTES)
        options = (*options, ("grpc.http2.bdp_probe", 0), (_WINDOW, int(most)))
    if how is not None and how.server_name:
        name = checks.unicode_text("tls.server_name", how.server_name)
        options = (*options, ("grpc.ssl_target_name_override", name))
    return ServerTarget(where, options, None if how is None else how.credentials(), metadata)


def is_local(address: str) -> bool:
    """Return whether a gRPC target is on this machine, judging by its text."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    for scheme in ("dns:///", "dns:", "ipv4:", "ipv6:"):
        address = address.removeprefix(scheme)
    return all(map(_is_loopback, address.split(",")))


def _is_loopback(host_and_port: str) -> bool:
    try:
        host = urlsplit(f"//{host_and_port}").hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _key(api_key: object) -> str:
    """Return the key. It appears in no error."""
    if isinstance(api_key, str) and api_key and api_key.isascii() and api_key.isprintable():
        return api_key
    raise InvalidArgument("api_key: must be printable ASCII text", field="api_key")


def _pem(name: str, file: File | None) -> bytes | None:
    return None if file is None else checks.file_bytes(name, file)
