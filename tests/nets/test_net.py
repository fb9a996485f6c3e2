import copy

import pytest
import torch
from torch import nn

from carm import nets


def test_any_module_can_be_wrapped_and_keeps_its_weights():
    own = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    before = copy.deepcopy(own.state_dict())
    net = nets.wrap(own, 5, classes=2, seed=3)
    x = torch.rand(4, 3, 2, 2)
    assert torch.equal(net.features(x), own(x))
    assert net(x).shape == (4, 2)
    assert all(torch.equal(before[key], value) for key, value in own.state_dict().items())
    net.grow(6)
    assert net(x).shape == (4, 6)
    assert net.classes == 6


def test_feature_maps_are_flattened():
    net = nets.wrap(nn.AdaptiveAvgPool2d(2), 12, classes=2)
    assert net.features(torch.rand(4, 3, 8, 8)).shape == (4, 12)


def test_a_wrong_feature_dim_is_reported_with_both_numbers():
    with pytest.raises(ValueError, match=r"feature_dim=7.*gives 12"):
        nets.wrap(nn.Flatten(), 7, classes=2)(torch.rand(4, 3, 2, 2))
    with pytest.raises(ValueError, match="feature_dim=0"):
        nets.wrap(nn.Flatten(), 0)


def test_a_copy_is_independent():
    """Distillation keeps a copy of the old net while the new one grows and trains."""
    net = nets.build("mlp", in_shape=(8,), classes=2)
    old = copy.deepcopy(net)
    x = torch.rand(3, 8)
    before = old(x)
    net.grow(4)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(1)
    assert torch.equal(old(x), before)
    assert old.classes == 2
