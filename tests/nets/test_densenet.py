import pytest
import torch

from carm.nets.densenet import DenseLayer, DenseNet


def gen() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_layer_keeps_its_input_and_adds_growth_channels():
    layer = DenseLayer(5, 3, generator=gen())
    x = torch.rand(2, 5, 4, 4)
    out = layer(x)
    assert out.shape == (2, 8, 4, 4)
    assert torch.equal(out[:, :5], x)


def test_channels_through_the_blocks():
    net = DenseNet((3, 32, 32), depth=100, growth=12, compression=0.5, generator=gen())
    widths = [24]
    for _ in range(2):
        widths.append((widths[-1] + 16 * 12) // 2)
    assert net.feature_dim == widths[-1] + 16 * 12 == 342
    assert net.parts(torch.zeros(1, 3, 32, 32)).shape == (1, 342, 8, 8)


def test_depth_counts_the_layers():
    net = DenseNet((3, 32, 32), depth=22, growth=4, compression=1.0, generator=gen())
    convolutions = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) + 1 == 22
    with pytest.raises(ValueError, match=r"depth=23.*6 n"):
        DenseNet((3, 32, 32), depth=23, growth=4, compression=1.0, generator=gen())
