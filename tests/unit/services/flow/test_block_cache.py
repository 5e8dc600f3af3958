"""Pages of blocks, and what the rows after them see."""

from __future__ import annotations

import torch

from antiphon_services.flow.block_cache import BlockCache, BlockCausalRows, BlockPages, BlockShape

CPU = torch.device("cpu")
SHAPE = BlockShape(evaluations=2, layers=1, sequences=2, frames=4, heads=1, head_dim=3)


def pages(count: int) -> BlockPages:
    return BlockPages(SHAPE, count * SHAPE.page_bytes + SHAPE.page_bytes - 1, CPU)


def own(rows: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 2, rows, 1, 3, generator=generator)


def test_budget_gives_whole_pages() -> None:
    assert SHAPE.page_bytes == 2 * 2 * 2 * 4 * 3 * 4
    assert [pages(count).count for count in (0, 1, 5)] == [0, 1, 5]


def test_released_sizes_take_180_mb_for_a_second() -> None:
    released = BlockShape(10, 22, 2, 50, 16, 64)
    assert released.page_bytes == 180_224_000


def test_rows_see_kept_blocks_and_their_own() -> None:
    cache = BlockCache(pages(3))
    first, second = own(8, 1), own(4, 2)
    rows = BlockCausalRows(cache, 8, keep=2)
    for evaluation in range(2):
        seen, mask = rows.seen(first + evaluation, evaluation, 0)
        torch.testing.assert_close(seen, first + evaluation)
        assert mask is not None
        assert mask.tolist() == [[True] * 4 + [False] * 4] * 4 + [[True] * 8] * 4
    rows.commit()
    assert cache.blocks == 2
    rows = BlockCausalRows(cache, 12, keep=1)
    assert (rows.first, rows.stop) == (8, 12)
    seen, mask = rows.seen(second, 1, 0)
    assert mask is None
    torch.testing.assert_close(seen, torch.cat((first + 1, second), 2))


def test_a_sequence_keeps_as_many_blocks_as_there_are_pages() -> None:
    shared = pages(3)
    one, other = BlockCache(shared), BlockCache(shared)
    for cache, keep, kept in ((one, 2, 2), (other, 2, 1), (other, 2, 0)):
        before = cache.blocks
        rows = BlockCausalRows(cache, (before + keep) * 4, keep=keep)
        assert cache.blocks == before
        rows.commit()
        assert cache.blocks == before + kept
    one.close()
    assert shared.free == 2
    rows = BlockCausalRows(other, 20, keep=4)
    rows.commit()
    assert (other.blocks, shared.free) == (3, 0)
    other.close()
    assert shared.free == 3


def test_a_computation_without_commit_keeps_nothing() -> None:
    shared = pages(2)
    cache = BlockCache(shared)
    BlockCausalRows(cache, 8, keep=2).seen(own(8, 1), 0, 0)
    assert cache.blocks == 0
    cache.close()
    assert shared.free == 2


def test_convolution_goes_on_from_the_last_kept_row() -> None:
    cache = BlockCache(pages(1))
    x = torch.arange(12.0).expand(2, 1, 12)
    rows = BlockCausalRows(cache, 8, keep=2)
    assert rows.preceded(x[:, :, :8], 0, 0, 3)[0, 0].tolist() == [0, 0, 0, *range(8)]
    rows.commit()
    rows = BlockCausalRows(cache, 12, keep=2)
    assert rows.preceded(x[:, :, 4:], 0, 0, 3)[0, 0].tolist() == list(range(1, 12))
