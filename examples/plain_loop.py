"""A plain PyTorch loop: ten classes arrive one after the other; 50 samples fit in RAM, all are kept on disk."""

import tempfile

import torch

import carm

torch.manual_seed(0)
centres = torch.randn(10, 2, 32)  # every class is two clouds of points
model = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def sample(y: torch.Tensor) -> torch.Tensor:
    return centres[y, torch.randint(2, (len(y),))] + 0.8 * torch.randn(len(y), 32)


with (
    tempfile.TemporaryDirectory() as directory,  # in earnest: a directory that stays
    carm.Memory(slots=50, storage=directory, gate=carm.Entropy(ratio=0.5), seed=0) as memory,
):
    for step in range(500):
        y = torch.full((16,), step // 50)
        x = sample(y)
        old = memory.draw(16)
        logits = model(torch.cat([x, old.x]))
        memory.feedback(old, logits[len(x) :])  # which old samples may go; others come while we go on
        loss = torch.nn.functional.cross_entropy(logits, torch.cat([y, old.y]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.add(x, y)  # some stay in RAM, all go to the store
    print(memory, memory.stats()["swapped"], "swaps")

y = torch.arange(10).repeat(100)
print(f"accuracy on all ten classes: {(model(sample(y)).argmax(1) == y).float().mean():.3f}")
