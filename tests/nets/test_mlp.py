import torch

from carm.nets.mlp import MLP


def test_features_by_hand():
    mlp = MLP((2,), hidden=(2, 1), generator=torch.Generator().manual_seed(0))
    first, second = (m for m in mlp.layers if isinstance(m, torch.nn.Linear))
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, -4.0]]))
        first.bias.copy_(torch.tensor([0.5, 0.0]))
        second.weight.copy_(torch.tensor([[2.0, 1.0]]))
        second.bias.copy_(torch.tensor([-1.0]))
    # first layer: 1 + 2 + .5 = 3.5 and relu(3 - 4) = 0; second: 2 x 3.5 - 1 = 6
    assert mlp(torch.ones(1, 2)).tolist() == [[6.0]]


def test_images_are_flattened():
    mlp = MLP((1, 4, 4), generator=torch.Generator().manual_seed(0))
    x = torch.rand(3, 1, 4, 4)
    assert torch.equal(mlp(x), mlp(x.view(3, 16)))


def test_weights_start_at_the_glorot_range_without_bias():
    mlp = MLP((784,), hidden=(100,), generator=torch.Generator().manual_seed(0))
    layer = mlp.layers[0]
    bound = (6 / 884) ** 0.5
    assert 0.99 * bound < float(layer.weight.detach().abs().max()) <= bound
    assert float(layer.bias.detach().abs().max()) == 0
