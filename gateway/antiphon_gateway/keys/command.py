"""The `python -m antiphon_gateway keys new NAME` command. It creates a key and its entry for the
file.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import msgspec

from antiphon.errors import InvalidArgument
from antiphon_gateway.admission.priority import Priority
from antiphon_gateway.keys.key_file import KeyEntry, KeyLimits, digest_of, in_words, new_key


def keys_command(arguments: Sequence[str], *, prog: str = "python -m antiphon_gateway keys") -> int:
    """Print a new key, which isn't stored anywhere, and the line to add to `gateway.keys_file`.
    Returns the exit status.

    Raises `InvalidArgument` if the name or a limit is invalid.
    """
    parser = argparse.ArgumentParser(prog=prog)
    actions = parser.add_subparsers(required=True)
    new = actions.add_parser("new", help="make a key")
    new.add_argument("name", help="name of the key in logs")
    new.add_argument("--priority", choices=tuple(Priority))
    new.add_argument("--expires", metavar="TIME", help="such as 2027-01-31T00:00:00Z")
    for limit in KeyLimits.__struct_fields__:
        if limit == "priority":
            continue
        new.add_argument(f"--{limit.replace('_', '-')}", type=int, metavar="N", dest=limit)
    parsed = vars(parser.parse_args(arguments))
    # An empty value or 0 is invalid. Without it, the key would have no limit.
    given = {name: each for name, each in parsed.items() if each is not None}
    key = new_key()
    try:
        entry = msgspec.convert(given | {"sha256": digest_of(key)}, KeyEntry)
    except msgspec.ValidationError as error:
        fault, _, name = str(error).rstrip("`").partition(" - at `$.")
        option = name if name == "name" else f"--{name.replace('_', '-')}"
        raise InvalidArgument(f"{option}: {in_words(fault)}", field=option) from error
    told = {name: each for name, each in msgspec.to_builtins(entry).items() if each is not None}
    print(f"The key, which can't be shown again:\n{key}\n")
    print("Add this to `keys:` in the file that gateway.keys_file specifies:")
    print(f"  - {msgspec.json.encode(told).decode()}")
    return 0
