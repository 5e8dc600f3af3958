"""Kinds of settings, with the bounds that each has."""

from __future__ import annotations

from typing import Annotated

import msgspec

# A page's origin as browsers send it, or any.
# A name, all names below one, or all names.
HostName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(\*|(\*\.)?[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?"
        r"(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*\.?)$",
        max_length=253,
    ),
]
Origin = Annotated[str, msgspec.Meta(pattern=r"^(\*|https?://[^/\s,]+)$")]
Positive = Annotated[int, msgspec.Meta(ge=1)]
# At most a year: what no clock can keep, such as infinity, is no deadline.
Seconds = Annotated[float, msgspec.Meta(gt=0, le=366 * 86_400)]
Ahead = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
Bytes = Annotated[int, msgspec.Meta(ge=1)]
Instruction = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
TraceEndpoint = Annotated[str, msgspec.Meta(pattern=r"^(https?://[^/\s]+)?$")]
