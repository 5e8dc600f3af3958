from __future__ import annotations

import os
import random

import pytest

from antiphon.transport.ring.entries import DamagedRing
from antiphon.transport.ring.messages import RingReader, RingWriter
from antiphon_tools.chaos.shared_rings import damage_rings


def test_only_entries_that_were_not_read_are_damaged() -> None:
    others = damage_rings(os.getpid(), random.Random(1))
    writer = RingWriter()
    reader = RingReader(*map(os.dup, writer.fds))
    writer.write(b"unread", 0)
    assert damage_rings(os.getpid(), random.Random(1)) == others + 1
    reader.notice()
    with pytest.raises(DamagedRing):
        reader.messages(0)
    writer.close()
    reader.close()
    assert damage_rings(os.getpid(), random.Random(1)) == others


def test_entries_that_are_written_after_the_damage_are_read() -> None:
    writer = RingWriter()
    reader = RingReader(*map(os.dup, writer.fds))
    damage_rings(os.getpid(), random.Random(1))
    writer.write(b"later", 0)
    reader.notice()
    assert reader.messages(0) == [b"later"]
    writer.close()
    reader.close()


def test_a_process_that_has_ended_has_no_rings() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    assert damage_rings(pid, random.Random(1)) == 0
