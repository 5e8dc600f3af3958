"""The messages between a stage and its schema server. Each of them is one JSON packet on a
seqpacket socket.
"""

from __future__ import annotations

import msgspec

MAX_PACKET_BYTES = 4 << 10
MAX_REPORT_BYTES = 64 << 10
"""The maximum size of what a child may write, which is its report and the compiler's warnings on
standard error.
"""

REJECTED = 3
"""The exit status of a child whose compiler rejected the schema. The report contains the reason."""

TOO_LARGE = 4
"""The exit status of a child whose compiled schema is larger than allowed."""


class SchemaVocabulary(msgspec.Struct, frozen=True):
    """The vocabulary for which schemas are compiled.

    It consists of xgrammar's tokenizer info as JSON, and of a flag that indicates whether vLLM
    allows arbitrary white space between the parts of a value.
    """

    tokenizer_info: str
    any_whitespace: bool


class CheckSchema(msgspec.Struct, frozen=True, tag=True):
    """Compile a schema in a new child process.

    The message is accompanied by two file descriptors: the schema in UTF-8, and an empty file for
    the report. SIGPROF ends the child after `cpu_s` seconds of CPU time, or after `parse_cpu_s`
    seconds if it has not parsed the schema by then. The child may map up to `memory_bytes` bytes
    more than the server has mapped. It rejects a schema whose compiled size is greater than
    `compiled_bytes`.
    """

    number: int
    cpu_s: float
    parse_cpu_s: float
    memory_bytes: int
    compiled_bytes: int
    niceness: int


class KillCompiler(msgspec.Struct, frozen=True, tag=True):
    """End a child process if it is still running."""

    number: int


class SchemaServerReady(msgspec.Struct, frozen=True, tag=True):
    """The server has read the vocabulary and can start children without delay."""


class CompilerStarted(msgspec.Struct, frozen=True, tag=True):
    """Contains the process ID of a child."""

    number: int
    pid: int


class CompilerEnded(msgspec.Struct, frozen=True, tag=True):
    """Contains the exit status of a child, or the negative number of the signal that ended it."""

    number: int
    status: int


ToServer = CheckSchema | KillCompiler
FromServer = SchemaServerReady | CompilerStarted | CompilerEnded
