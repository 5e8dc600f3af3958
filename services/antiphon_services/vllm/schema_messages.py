"""Messages between a stage and its schema server: one JSON packet each, over a seqpacket socket."""

from __future__ import annotations

import msgspec

MAX_PACKET_BYTES = 4 << 10
MAX_REPORT_BYTES = 64 << 10
"""What a child may write: its report, and the compiler's warnings on standard error."""

REJECTED = 3
"""Exit status of a child whose compiler rejected the schema; the report has the reason."""

TOO_LARGE = 4
"""Exit status of a child whose compiled schema is larger than allowed."""


class SchemaVocabulary(msgspec.Struct, frozen=True):
    """What schemas are compiled against: xgrammar's tokenizer info as JSON, and whether vLLM
    allows any white space between the parts of a value."""

    tokenizer_info: str
    any_whitespace: bool


class CheckSchema(msgspec.Struct, frozen=True, tag=True):
    """Compile a schema in a new child process.

    Two descriptors come with it: the schema, UTF-8, and an empty file for the report. SIGPROF
    ends the child after `cpu_s` of CPU time, and after `parse_cpu_s` if it has not parsed the
    schema by then. The child may map `memory_bytes` more than the server has mapped, and rejects a
    schema that is larger than `compiled_bytes` when compiled.
    """

    number: int
    cpu_s: float
    parse_cpu_s: float
    memory_bytes: int
    compiled_bytes: int
    niceness: int


class KillCompiler(msgspec.Struct, frozen=True, tag=True):
    """End a child process, if it still runs."""

    number: int


class SchemaServerReady(msgspec.Struct, frozen=True, tag=True):
    """The server has read the vocabulary and starts children without delay."""


class CompilerStarted(msgspec.Struct, frozen=True, tag=True):
    """The process id of a child."""

    number: int
    pid: int


class CompilerEnded(msgspec.Struct, frozen=True, tag=True):
    """A child's exit status, or the negative number of the signal that ended it."""

    number: int
    status: int


ToServer = CheckSchema | KillCompiler
FromServer = SchemaServerReady | CompilerStarted | CompilerEnded
