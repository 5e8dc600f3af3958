"""Messages between a stage and its schema server. Each message is one JSON packet on a seqpacket
socket.
"""

from __future__ import annotations

import msgspec

MAX_PACKET_BYTES = 4 << 10
MAX_REPORT_BYTES = 64 << 10
"""The maximum size of a child's output, which consists of its report and any compiler warnings on
standard error.
"""

REJECTED = 3
"""The exit status of a child whose compiler rejected the schema. The report contains the reason."""

TOO_LARGE = 4
"""The exit status of a child whose compiled schema exceeds the size limit."""


class SchemaVocabulary(msgspec.Struct, frozen=True):
    """The vocabulary for which schemas are compiled.

    It consists of xgrammar's tokenizer info as JSON, and a flag that indicates whether vLLM allows
    arbitrary white space between the parts of a value.
    """

    tokenizer_info: str
    any_whitespace: bool


class CheckSchema(msgspec.Struct, frozen=True, tag=True):
    """A request to compile a schema in a new child process.

    Two file descriptors are sent along with the message: the schema in UTF-8, and an empty file for
    the report. SIGPROF ends the child after `cpu_s` seconds of CPU time, or after `parse_cpu_s`
    seconds if it hasn't finished parsing the schema by then. The child can map up to `memory_bytes`
    more bytes than the server. It rejects the schema if its compiled size exceeds `compiled_bytes`.
    """

    number: int
    cpu_s: float
    parse_cpu_s: float
    memory_bytes: int
    compiled_bytes: int
    niceness: int


class KillCompiler(msgspec.Struct, frozen=True, tag=True):
    """A request to kill a child process if it is still running."""

    number: int


class SchemaServerReady(msgspec.Struct, frozen=True, tag=True):
    """The server has read the vocabulary and can now start children without delay."""


class CompilerStarted(msgspec.Struct, frozen=True, tag=True):
    """A child has been started with this process ID."""

    number: int
    pid: int


class CompilerEnded(msgspec.Struct, frozen=True, tag=True):
    """A child has ended, with this exit status or the negative number of the signal that ended
    it.
    """

    number: int
    status: int


ToServer = CheckSchema | KillCompiler
FromServer = SchemaServerReady | CompilerStarted | CompilerEnded
