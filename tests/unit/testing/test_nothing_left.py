"""The conformance suite finds the memory that a link has left, and nothing else."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from antiphon.transport.payload.slab import Slab
from antiphon_testkit import check_transport
from antiphon_testkit.check_transport import check_nothing_is_left


async def test_memory_of_a_slab_is_found_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check_transport, "GENEROUS_S", 0.0)
    slab = Slab(1 << 20)
    with pytest.raises(AssertionError, match="antiphon-slab"):
        await check_nothing_is_left()
    slab.close()


async def test_libraries_of_a_checkout_named_like_the_slabs_are_not_found(tmp_path: Path) -> None:
    library = tmp_path / "antiphon" / "library.so"
    library.parent.mkdir()
    library.write_bytes(bytes(mmap.PAGESIZE))
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        await check_nothing_is_left()
