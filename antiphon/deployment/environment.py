"""Replaces environment variables in addresses. A pod uses such a variable to find out its own
address.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from antiphon.errors import InvalidArgument

_NAME = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expanded(address: str, environment: Mapping[str, str], *, field: str) -> str:
    """Return the address with each `${NAME}` replaced by the value of that environment variable.

    If the value is an IPv6 address, it is put in brackets. Raises `InvalidArgument` if a variable
    is empty or not set.
    """

    def value(found: re.Match[str]) -> str:
        name = found.group(1)
        if not (given := environment.get(name, "")):
            raise InvalidArgument(
                f"{field}: {address!r} refers to the environment variable {name}, which is not set",
                field=field,
            )
        bare = address[: found.start()][-1:] != "["
        return f"[{given}]" if bare and _is_ipv6(given) else given

    return _NAME.sub(value, address)


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
