import pytest
import torch

from carm.nets.resnet import BasicBlock, ResNet, resnet18, resnet32


def gen() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_the_cifar_stem_keeps_the_image_and_the_stages_halve_it():
    x = torch.zeros(1, 3, 32, 32)
    net = resnet32((3, 32, 32), generator=gen())
    assert net.stem(x).shape == (1, 16, 32, 32)
    assert net.blocks(net.stem(x)).shape == (1, 64, 8, 8)
    net = resnet18((3, 32, 32), generator=gen())
    assert net.blocks(net.stem(x)).shape == (1, 512, 4, 4)


def test_the_imagenet_stem_divides_by_four():
    net = resnet18((3, 224, 224), stem="imagenet", generator=gen())
    assert net.stem(torch.zeros(1, 3, 224, 224)).shape == (1, 64, 56, 56)


def test_32_layers():
    net = resnet32((3, 32, 32), generator=gen())
    convolutions = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) + 1 == 32  # and the head


def test_the_padded_shortcut_drops_pixels_and_adds_empty_channels():
    block = BasicBlock(2, 4, stride=2, project=False, generator=gen())
    torch.nn.init.zeros_(block.norm2.weight)  # leaves the shortcut alone
    x = torch.arange(1.0, 33.0).view(1, 2, 4, 4)
    out = block(x)
    assert torch.equal(out[0, 1:3], x[0, :, ::2, ::2])
    assert out[0, 0].abs().sum() == 0
    assert out[0, 3].abs().sum() == 0


def test_a_block_that_changes_nothing_has_the_identity_as_shortcut():
    for project in (False, True):
        block = BasicBlock(3, 3, stride=1, project=project, generator=gen())
        torch.nn.init.zeros_(block.norm2.weight)
        x = torch.rand(2, 3, 5, 5)
        assert torch.equal(block(x), x)


def test_odd_sizes_go_through_both_shortcuts():
    for project in (False, True):
        net = ResNet((3, 29, 31), stages=(1, 1), width=4, stem="cifar", project=project, generator=gen())
        assert net(torch.zeros(1, 3, 29, 31)).shape == (1, 8)


def test_width_is_checked():
    with pytest.raises(ValueError, match="width=0"):
        resnet18((3, 32, 32), width=0, generator=gen())
