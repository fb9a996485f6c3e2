"""RM, Rainbow Memory (Bang et al., 2021): a memory that spans sure and unsure samples.

The first pass goes over the task and the memory. Then the memory takes the task in: the net is asked about several
perturbed copies of each sample, and the less its votes agree the more uncertain the sample is; every class keeps
samples at even steps along its list sorted by uncertainty. The other passes go over the memory alone. With data
augmentation (DA) training mixes images by CutMix and changes them by RandAugment; the paper runs without.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from carm.memory.batch import Batch
from carm.memory.select import Selection, UncertaintySpread
from carm.methods.gdumb import GDumb


class RM(GDumb):
    """copies: perturbed copies of each sample that vote on its uncertainty."""

    name = "rm"

    def __init__(self, *, copies: int = 12) -> None:
        if copies < 2:
            raise ValueError(f"copies={copies}: one vote cannot disagree; give 2 or more")
        self.copies = copies

    def selection(self) -> Selection:
        return UncertaintySpread()

    def prepare_task(self) -> None:
        self.stored = False

    def fill_stream(self) -> None:
        if not self.stored:
            super(GDumb, self).fill_stream()

    def batches(self, number: int) -> Iterator[Batch]:
        self.set_pass(number)
        yield from self.memory.bundle(self.stream if number == 0 else None, batch_size=self.training.batch)

    def end_pass(self, number: int) -> None:
        if number == 0:
            self.store()
            self.stored, self.stream = True, {}

    def store(self) -> None:
        self.memory.flush()  # what comes in after this would have another sample's uncertainty
        ours = torch.zeros(self.memory.capacity)
        if len(self.memory):
            slots = self.memory.slots
            ours[torch.from_numpy(slots)] = self.uncertainty(self.memory.take(slots).x)
        signals = {"uncertainty": self.uncertainty(self.stream["x"])}
        self.memory.add(self.stream["x"], self.stream["y"], signals=signals, ram_signals={"uncertainty": ours})

    @torch.no_grad()
    def uncertainty(self, x: Any) -> Tensor:
        """1 - the share of the most frequent vote."""
        self.net.eval()
        out = []
        for at in range(0, len(x), 256):
            votes = [self.net(self.views.perturbed(x[at : at + 256])).argmax(1) for _ in range(self.copies)]
            out.append(1 - agreement(torch.stack(votes)))
        return torch.cat(out).cpu()


def agreement(votes: Tensor) -> Tensor:
    """The share of the most frequent vote, of votes (copies, n)."""
    counts = torch.zeros(votes.shape[1], int(votes.max()) + 1, device=votes.device)
    counts.scatter_add_(1, votes.T, torch.ones_like(votes.T, dtype=counts.dtype))
    return counts.max(1).values / len(votes)
