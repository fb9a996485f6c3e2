"""A gate of your own: swap the samples that the model already gets right by a wide margin, keep the close ones."""

import numpy as np
import torch

import carm


class Margin(carm.Gate):
    needs_logits = True

    def score(self, signals: carm.Signals, rng: np.random.Generator) -> np.ndarray:
        best, second = signals.logits.topk(2, dim=1).values.unbind(1)
        return (second - best).double().cpu().numpy()  # the lowest scores are swapped: the widest margins


if __name__ == "__main__":
    import tempfile

    torch.manual_seed(0)
    with (
        tempfile.TemporaryDirectory() as directory,
        carm.Memory(20, storage=directory, gate=Margin(ratio=0.25)) as memory,
    ):
        memory.add(torch.randn(100, 8), torch.arange(100) % 5)
        memory.flush()
        for _ in range(20):
            old = memory.draw(16)
            memory.feedback(old, logits=torch.randn(len(old), 5))
        memory.flush()
        stats = memory.stats()
        print(f"{stats['picked']} of {stats['drawn']} were let go, {stats['swapped']} swapped")
