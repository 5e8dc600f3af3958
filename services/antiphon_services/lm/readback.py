"""Represents the draws of a step while they are being copied to the host.

With launch-ahead (`lm.frame_engine`), step n + 1 is launched before the draws of step n are read.
Both steps run on the same stream, one after the other, so step n + 1 overwrites the model's memory,
including the outputs of graphs, as soon as step n is done with it. The copy to the host runs on a
different stream, which is why its source must be a tensor that nothing else writes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument
from antiphon.transport.device_edge import Mark, ToHost


class Drawn(NamedTuple):
    """A single draw. It consists of IDs (int64 [G]) and a flag that is true if the logits left at
    least one ID to choose from.

    If the first ID is the stop code, for example, the draw is not a frame.
    """

    ids: npt.NDArray[np.int64]
    decided: bool

    @property
    def codes(self) -> npt.NDArray[np.uint16]:
        """The frame as it is sent (uint16 [1, G])."""
        return self.ids[None].astype(np.uint16)


class PendingDraw(NamedTuple):
    """One row (int64 [G + 1]) of a step's draws. It contains the IDs, followed by `decided`.

    The row is valid once `mark` has been reached, or immediately if `mark` is None.
    """

    row: npt.NDArray[np.int64]
    mark: Mark | None

    def read(self) -> Drawn:
        """Return the draw. Its IDs are a view of the row. The mark must already have been
        reached.
        """
        return Drawn(self.row[:-1], bool(self.row[-1]))


class Readback:
    """Copies a step's draws to the host. Without `to_host`, the copies are synchronous."""

    def __init__(self, to_host: ToHost | None) -> None:
        self._to_host = to_host or ToHost.direct()

    @classmethod
    def of(cls, config: StageConfig) -> Readback:
        """Return the read-back for a stage. It is asynchronous if launch-ahead is enabled."""
        return cls(ToHost.of(config) if config.torch.launch_ahead else None)

    def begin(self, rows: torch.Tensor, order: Sequence[int]) -> list[PendingDraw]:
        """Start to copy `rows` (int64 [n, G + 1]) to the host. Nothing else may write to this
        tensor.

        `order` contains the row number of each draw.
        """
        copied, mark = self._to_host.copy(rows), self._to_host.mark()
        return [PendingDraw(copied[row], mark) for row in order]


def check_launch_ahead(config: StageConfig) -> None:
    """Raise `InvalidArgument` if launch-ahead is enabled but the configured read-back would make
    each step wait for the host.
    """
    on_gpu = config.device.startswith("cuda")
    if config.torch.launch_ahead and on_gpu and not config.copies.async_to_host:
        raise InvalidArgument(
            "torch.launch_ahead: requires frames to be copied to the host while the next step "
            "runs; set copies.async_to_host to true, or torch.launch_ahead to false",
            field="torch.launch_ahead",
        )
