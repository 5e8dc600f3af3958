"""Types for settings, each with its range of valid values."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from antiphon.errors import InvalidArgument, told

# A host name, a pattern for all names below one, or `*` for all names.
HostName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(\*|(\*\.)?[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?"
        r"(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*\.?)$",
        max_length=253,
    ),
]
_ORIGINS = "gateway.cors_origins"
# Helm's regular expressions don't support look-ahead.
ORIGIN_PATTERN = (
    r"^(\*|null|file://|[A-Za-z][A-Za-z0-9+.-]*://"
    r"(\*|(\*\.)?[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:([0-9]{1,5}|\*))?)$"
)
# An origin in the form in which browsers send it. `*` can stand for all origins, for a whole host,
# for the names below a host (`*.`) or for any port. `GatewayConfig` validates it, because its error
# message is clearer than that of a pattern.
Origin = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": ORIGIN_PATTERN})]
Positive = Annotated[int, msgspec.Meta(ge=1)]
# The maximum is one year. Clocks cannot represent values such as infinity, so these are not valid
# deadlines.
Seconds = Annotated[float, msgspec.Meta(gt=0, le=366 * 86_400)]
Ahead = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Bytes = Annotated[int, msgspec.Meta(ge=1)]
Instruction = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
TraceEndpoint = Annotated[str, msgspec.Meta(pattern=r"^(https?://[^/\s]+)?$")]


def check_origin(origin: str) -> None:
    """Raise `InvalidArgument` if the text is neither an origin that a browser could send nor a
    supported pattern.
    """
    if not re.fullmatch(ORIGIN_PATTERN, origin):
        raise InvalidArgument(
            f"{_ORIGINS}: {told(origin)} is not a valid origin; use the form that browsers "
            "send, without a path or trailing slash: https://app.example, http://localhost:*, "
            "app://NAME, file:// or null; * allows all origins",
            field=_ORIGINS,
        )
