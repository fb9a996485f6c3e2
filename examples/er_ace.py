"""A method of your own: ER-ACE (Caccia et al., 2022), experience replay with asymmetric cross-entropy.

    carm run examples/er_ace.py:ERACE --data digits         like any other method
    python examples/er_ace.py                               compare it with ER

When new classes arrive, plain replay pushes their outputs up and those of all old classes down, for the few old samples
to repair. ER-ACE does not let that happen: a new sample's loss is over the classes of the present task alone, and only
old samples are told apart from everything.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from carm.lab import Config, run
from carm.memory.batch import Batch
from carm.methods import Method


class ERACE(Method):
    """weight: of the old samples' loss against that of the new ones."""

    name = "er-ace"

    def __init__(self, *, weight: float = 1.0) -> None:
        if not weight >= 0:
            raise ValueError(f"weight={weight}: must be 0 or more")
        self.weight = weight

    def learn(self, batch: Batch) -> Tensor:
        """One step. (`Method.learn` does the same with one loss for all; ours must know which samples are old.)"""
        x, y = self.views.train(batch.x), batch.y.to(self.device)
        logits = self.forward(x)
        self.feedback(batch, logits)  # the gate decides what may leave RAM
        loss = self.asymmetric(logits[:, : self.seen], y, batch.old.to(self.device))
        self.descend(loss)
        return loss.detach()

    def asymmetric(self, logits: Tensor, y: Tensor, old: Tensor) -> Tensor:
        """The mean over the new samples among the classes of the task, and over the old ones among all classes seen."""
        present = torch.zeros(self.seen, dtype=torch.bool, device=self.device)
        present[list(self.tasks[-1])] = True
        candidates = present | old[:, None]
        losses = F.cross_entropy(logits.masked_fill(~candidates, float("-inf")), y, reduction="none")
        new_part = losses[~old].sum() / max(int((~old).sum()), 1)
        old_part = losses[old].sum() / max(int(old.sum()), 1)
        return new_part + self.weight * old_part


def main() -> None:
    online = {"data": "digits", "per_class": 60, "level": "batch", "batch": 10, "old_batch": 10, "lr": 0.1, "em": 30}
    with tempfile.TemporaryDirectory() as folder:
        for method, options in (("er", {"loss": "ce", "keep": "reservoir"}), (f"{__file__}:ERACE", {})):
            runs = [Config(method=method, options=options, seed=seed, **online) for seed in range(2)]
            found = [run(config, Path(folder) / config.key)["final"]["ci"] for config in runs]
            accuracy, forgetting = (sum(one[k] for one in found) / len(found) for k in ("accuracy", "forgetting"))
            print(f"{Path(method).name:16} accuracy {accuracy:4.1f} %   forgetting {forgetting:4.1f} %")


if __name__ == "__main__":
    main()
