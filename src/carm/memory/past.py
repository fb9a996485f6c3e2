"""The way back to checkpoints: which commits a store can return to, and what it keeps for that.

A checkpoint notes the number of a commit. To come back to it, the commits since are deleted; so the extents of samples
that have died since then are not given to others for as long as somebody may want to.
"""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carm.memory.catalogue import Catalogue, Contents, Mark
from carm.memory.extents import padded_each

log = logging.getLogger("carm")
Ints = NDArray[np.int64]


class Past:
    """The marked commits of one store, the oldest first, and the dead since."""

    def __init__(self, directory: Path, contents: Contents) -> None:
        self.directory = directory
        self.marks: list[Mark] = list(contents.marks)
        self.floor = contents.floor
        """The earliest commit that can be returned to."""
        self.retained = 0
        """Bytes that are kept for the way back."""
        self.graves: list[tuple[int, Ints, Ints]] = []  # (commit, offsets, sizes) of the dead that could come back
        for seq in np.unique(contents.died).tolist():
            here = contents.dead[contents.died == seq]
            self.bury(seq, here["offset"].astype(np.int64), here["size"].astype(np.int64))

    def bury(self, seq: int, offsets: Ints, sizes: Ints) -> None:
        """These died in commit `seq`."""
        if len(offsets):
            self.graves.append((seq, offsets, sizes))
            self.retained += int(padded_each(sizes).sum())

    def mark(self, catalogue: Catalogue, seq: int) -> tuple[str, Ints, Ints]:
        """Keep the way back to commit `seq`, the last one. Returns its name, and the extents that need not be kept any
        more: where anything has died, two marks are enough."""
        marks = self.marks
        if not marks or marks[-1][0] != seq:
            marks = [*marks, (seq, uuid.uuid4().hex)]
        if self.graves:
            marks = marks[-2:]
        return marks[-1][1], *self._keep(catalogue, marks, seq)

    def forget_oldest(self, catalogue: Catalogue, seq: int) -> tuple[Ints, Ints]:
        """Give up the way back to the oldest mark, for the room that it takes; `seq` is the last commit. Returns the
        extents that need not be kept any more."""
        level = logging.INFO if len(self.marks) > 1 else logging.WARNING  # the newest one is worth a word
        log.log(level, "%s: the checkpoint of commit %d can no longer be restored", self.directory, self.marks[0][0])
        return self._keep(catalogue, self.marks[1:], seq)

    def _keep(self, catalogue: Catalogue, marks: list[Mark], seq: int) -> tuple[Ints, Ints]:
        floor = marks[0][0] if marks else seq
        catalogue.set_marks(marks, floor)
        self.marks, self.floor = marks, floor
        gone = [grave for grave in self.graves if grave[0] <= floor]
        self.graves = [grave for grave in self.graves if grave[0] > floor]
        nothing = np.zeros(0, np.int64)
        offsets = np.concatenate([nothing, *(offsets for _, offsets, _ in gone)])
        sizes = np.concatenate([nothing, *(sizes for _, _, sizes in gone)])
        self.retained -= int(padded_each(sizes).sum())
        return offsets, sizes
