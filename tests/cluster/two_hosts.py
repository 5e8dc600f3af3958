"""Two hosts of one machine: network namespaces, with networks between them that can be cut.

`stages` is for links between stages, `control` for what the gateway says to stages of the other
host, and `clients` leads from the test to the second host. Processes of one namespace have the same
abstract sockets, so they can share memory; those of two have not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

FIRST, SECOND = "first", "second"
NETWORKS = {"stages": 1, "control": 2}


class NoNamespaces(Exception):
    """They cannot be made here, and why."""


class TwoHosts:
    """See the head of this file. Addresses are those of RFC 2544, for tests of networks."""

    def __init__(self) -> None:
        self._prefix = f"an{os.getpid()}"
        # The side of the test is in its own namespace, beside those of other runs.
        self._clients = f"198.19.{os.getpid() % 250}"

    def name(self, host: str) -> str:
        """The host's namespace."""
        return f"{self._prefix}{host[0]}"

    def address(self, host: str, network: str) -> str:
        """Of a host on a network."""
        if network == "clients":
            return f"{self._clients}.2"
        return f"198.18.{NETWORKS[network]}.{1 if host == FIRST else 2}"

    def cut(self, network: str) -> None:
        """Nothing passes from now on, and nobody is told."""
        _ip("-n", self.name(FIRST), "link", "set", network, "down")

    def heal(self, network: str) -> None:
        """All passes again."""
        _ip("-n", self.name(FIRST), "link", "set", network, "up")

    def make(self, stack: ExitStack) -> None:
        """Make all; `stack` has what takes it away again."""
        hosts = [self.name(FIRST), self.name(SECOND)]
        for name in hosts:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("-n", name, "link", "set", "lo", "up")
        for network in NETWORKS:
            _ip(
                *("link", "add", network, "netns", hosts[0], "type", "veth"),
                *("peer", "name", network, "netns", hosts[1]),
            )
            for host, name in zip((FIRST, SECOND), hosts, strict=True):
                address = f"{self.address(host, network)}/24"
                _ip("-n", name, "address", "add", address, "dev", network)
                _ip("-n", name, "link", "set", network, "up")
        outside = f"{self._prefix}c"
        _ip(
            *("link", "add", outside, "type", "veth"),
            *("peer", "name", "clients", "netns", hosts[1]),
        )
        _ip("address", "add", f"{self._clients}.1/24", "dev", outside)
        _ip("link", "set", outside, "up")
        _ip("-n", hosts[1], "address", "add", f"{self._clients}.2/24", "dev", "clients")
        _ip("-n", hosts[1], "link", "set", "clients", "up")


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Two hosts, until the block ends. Raises `NoNamespaces`."""
    with ExitStack() as stack:
        hosts = TwoHosts()
        hosts.make(stack)
        yield hosts


def _ip(*arguments: str) -> None:
    program = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if program is None:
        raise NoNamespaces("there is no program ip (Debian: iproute2)")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNamespaces(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
