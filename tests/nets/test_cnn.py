import pytest
import torch
import torch.nn.functional as F

from carm import nets
from carm.nets.cnn import CNN


@pytest.mark.parametrize("size", [8, 28, 32, 64])
def test_features_do_not_depend_on_the_image_size(size):
    cnn = CNN((1, size, size), width=4, generator=torch.Generator().manual_seed(0))
    assert cnn(torch.rand(2, 1, size, size)).shape == (2, cnn.feature_dim) == (2, 128)


def test_it_learns_handwritten_digits_in_seconds():
    """Three passes give 0.957 to 0.985 over five seeds."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(digits.target), generator=generator)
    x = torch.tensor(digits.images, dtype=torch.float32)[order, None] / 16
    y = torch.tensor(digits.target)[order]
    net = nets.build("cnn", in_shape=(1, 8, 8), classes=10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        for part in torch.randperm(1400, generator=generator).split(64):
            optimizer.zero_grad()
            F.cross_entropy(net(x[part]), y[part]).backward()
            optimizer.step()
    net.eval()
    with torch.no_grad():
        accuracy = float((net(x[1400:]).argmax(1) == y[1400:]).float().mean())
    assert accuracy > 0.9
