"""The settings for connecting to a server, including its address, TLS, keepalive and
authentication.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from os import PathLike
from urllib.parse import urlsplit

import grpc

from antiphon.client import checks
from antiphon.client.checks import MAX_MESSAGE_BYTES
from antiphon.errors import InvalidArgument

# While a call is waiting, an unreachable gateway is detected within the sum of these two times.
# gRPC also uses the second one for other pings, with a default of one minute.
KEEPALIVE_TIME_MS = 10_000
PING_TIMEOUT_MS = 10_000

# The reconnect interval. It must be shorter than the client's retry interval (`Retry`). With gRPC's
# default, the interval would grow to two minutes.
FIRST_RECONNECT_MS = 100
MAX_RECONNECT_MS = 500
# The timeout for connecting to an address that doesn't respond, such as that of a deleted pod.
# gRPC's default is 20 seconds.
CONNECT_TIMEOUT_MS = 5_000
# The minimum interval between DNS lookups. With gRPC's default of 30 seconds, the client would find
# a new pod too late.
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
    # Each client opens its own connection. If several gateways serve an address, the clients of a
    # process can then be connected to different gateways.
    ("grpc.use_local_subchannel_pool", 1),
)

MOST_READ_AHEAD_BYTES = 64 << 20
# The size of HTTP/2's flow control window for each call. By default, gRPC adapts it to the network.
_WINDOW = "grpc.http2.lookahead_bytes"

File = bytes | str | PathLike[str]


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings for a connection. All files are in PEM format.

    Each file can be given as bytes or as a path. If `root_certificates` is not set, gRPC's built-in
    root certificates are used. Set `certificate_chain` and `private_key` if the server requires a
    client certificate. Set `server_name` if the name in the server's certificate differs from the
    address.

    >>> antiphon.Client("speech.example:443", tls=antiphon.Tls(root_certificates="ca.pem"))
    """

    root_certificates: File | None = None
    certificate_chain: File | None = None
    private_key: File | None = field(default=None, repr=False)
    server_name: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the channel credentials. Raises `InvalidArgument` if a file cannot be read."""
        if (self.certificate_chain is None) != (self.private_key is None):
            raise InvalidArgument(
                "tls: certificate_chain and private_key must be set together",
                field="tls.private_key",
            )
        return grpc.ssl_channel_credentials(
            _pem("tls.root_certificates", self.root_certificates),
            _pem("tls.private_key", self.private_key),
            _pem("tls.certificate_chain", self.certificate_chain),
        )


@dataclass(slots=True)
class Contact:
    """Records whether the server at an address has ever sent a message or a typed error."""

    made: bool = False


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """A server's address and the settings for connecting to it.

    Without credentials, the channel isn't encrypted. `metadata` is sent with every call. `contact`
    is updated by the calls on the channel.
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
    """Validate the address and the settings and return the client's target. Raises
    `InvalidArgument` if they are invalid.
    """
    where = checks.address(address)
    if not isinstance(tls, bool | Tls):
        raise checks.wrong_type("tls", "True, False or a Tls", tls)
    how = Tls() if tls is True else tls or None
    metadata: Metadata = ()
    if api_key is not None:
        metadata = (("authorization", f"Bearer {_key(api_key)}"),)
        if how is None and not key_in_clear and not is_local(where):
            raise InvalidArgument(
                f"api_key: would be sent to {where} without encryption; set tls, or "
                "key_in_clear=True if the network is trusted",
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
    """Return whether a gRPC target refers to the local machine."""
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
    """Validate and return the API key. Error messages never contain the key."""
    if isinstance(api_key, str) and api_key and api_key.isascii() and api_key.isprintable():
        return api_key
    raise InvalidArgument("api_key: must be printable ASCII text", field="api_key")


def _pem(name: str, file: File | None) -> bytes | None:
    return None if file is None else checks.file_bytes(name, file)
