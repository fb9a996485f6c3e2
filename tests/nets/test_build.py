"""Every net by name: size against the published architecture, shapes, gradients, seeds, memory formats."""

import pytest
import torch
import torch.nn.functional as F

from carm import nets

SHAPES = {"resnet18-imagenet": (3, 64, 64), "mlp": (1, 28, 28), "mlp400": (1, 28, 28)}
NAMES = nets.names()


def small(name: str, **options) -> nets.Net:
    return nets.build(name, in_shape=SHAPES.get(name, (3, 16, 16)), **{"classes": 10, **options})


def images(name: str, n: int = 4) -> torch.Tensor:
    return torch.rand(n, *SHAPES.get(name, (3, 16, 16)), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("name", "in_shape", "classes", "parameters"),
    [
        ("resnet32", (3, 32, 32), 10, 464_154),
        ("resnet18", (3, 32, 32), 10, 11_173_962),
        ("resnet18-imagenet", (3, 224, 224), 1000, 11_689_512),
        ("resnet18-reduced", (3, 32, 32), 100, 1_109_240),
        ("densenet100", (3, 32, 32), 10, 769_162),
        ("mlp", (1, 28, 28), 10, 784 * 100 + 100 + 100 * 100 + 100 + 100 * 10 + 10),
        ("mlp400", (1, 28, 28), 10, 784 * 400 + 400 + 400 * 400 + 400 + 400 * 10 + 10),
    ],
)
def test_parameter_counts_are_those_of_the_published_nets(name, in_shape, classes, parameters):
    net = nets.build(name, in_shape=in_shape, classes=classes)
    assert sum(p.numel() for p in net.parameters()) == parameters


@pytest.mark.parametrize(
    ("name", "dim"),
    [("resnet32", 64), ("resnet18", 512), ("resnet18-reduced", 160), ("densenet100", 342), ("mlp400", 400)],
)
def test_feature_dim(name, dim):
    assert small(name).feature_dim == dim


@pytest.mark.parametrize("name", NAMES)
def test_forward_is_the_head_on_the_features_and_reaches_every_parameter(name):
    net = small(name)
    x = images(name)
    assert net.features(x).shape == (4, net.feature_dim)
    logits = net(x)
    assert logits.shape == (4, 10)
    F.cross_entropy(logits, torch.arange(4)).backward()
    for key, p in net.named_parameters():
        assert p.grad is not None, key
        assert torch.isfinite(p.grad).all(), key
        assert p.grad.abs().sum() > 0, key
    net.eval()
    with torch.no_grad():
        assert torch.equal(net(x), net.head(net.features(x)))


@pytest.mark.parametrize("name", NAMES)
def test_weights_depend_on_the_seed_and_nothing_else(name):
    before = torch.random.get_rng_state()
    net = small(name, seed=7)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    for same in (small(name, seed=7), small(name, seed=torch.Generator().manual_seed(7))):
        for (key, a), (_, b) in zip(net.state_dict().items(), same.state_dict().items(), strict=True):
            assert torch.equal(a, b), key
    other = small(name, seed=8)
    drawn = [key for key, p in net.named_parameters() if p.ndim > 1]
    assert drawn
    assert all(not torch.equal(net.get_parameter(key), other.get_parameter(key)) for key in drawn)


def test_one_generator_gives_each_net_weights_of_its_own():
    generator = torch.Generator().manual_seed(0)
    a, b = small("mlp", seed=generator), small("mlp", seed=generator)
    assert not torch.equal(next(a.backbone.parameters()), next(b.backbone.parameters()))
    assert not torch.equal(a.head.weight, b.head.weight)


def test_the_backbone_does_not_depend_on_the_head():
    a, b = small("cnn", classes=0), small("cnn", classes=50, head="fixed")
    assert all(torch.equal(p, q) for p, q in zip(a.backbone.parameters(), b.backbone.parameters(), strict=True))


@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith("mlp")])
def test_channels_last_gives_the_same_logits(name):
    net = small(name).eval()
    x = images(name)
    with torch.no_grad():
        plain = net(x)
        net = net.to(memory_format=torch.channels_last)
        assert torch.allclose(net(x.to(memory_format=torch.channels_last)), plain, atol=1e-4)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "resnet18-imagenet"])
@pytest.mark.parametrize("in_shape", [(1, 28, 28), (3, 40, 48)])
def test_image_sizes_and_channels(name, in_shape):
    net = nets.build(name, in_shape=in_shape, classes=3).eval()
    with torch.no_grad():
        assert net(torch.zeros(2, *in_shape)).shape == (2, 3)


@pytest.mark.parametrize("name", NAMES)
def test_an_untrained_net_answers_with_logits_of_moderate_size(name):
    """In evaluation mode the norms do not yet scale anything: only the initialisation does."""
    net = small(name).eval()
    with torch.no_grad():
        assert float(net(images(name)).abs().max()) < 100


def test_unknown_names_are_answered_with_the_nearest_and_the_list():
    with pytest.raises(ValueError, match=r"resnet_32.*Did you mean 'resnet32'.*cnn, densenet100"):
        nets.build("resnet_32", in_shape=(3, 32, 32), classes=10)


def test_unknown_options_are_answered_with_the_list():
    with pytest.raises(ValueError, match=r"widht=8.*width"):
        nets.build("cnn", in_shape=(3, 32, 32), widht=8)
    with pytest.raises(ValueError, match="takes none"):
        nets.build("resnet32", in_shape=(3, 32, 32), width=8)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet32", {"in_shape": (784,)}, "in_shape.*channels, height, width"),
        ("resnet18-imagenet", {"in_shape": (3, 32, 32)}, "at least 64 for the ImageNet stem"),
        ("cnn", {"in_shape": (3, 7, 32)}, "at least 8"),
        ("cnn", {"in_shape": (3, 32, 32), "width": 0}, "width=0"),
        ("cnn", {"in_shape": (3, 32, 32), "head": "none"}, "head='none'.*'growing' or 'fixed'"),
        ("cnn", {"in_shape": (3, 32, 32), "head": "fixed"}, "classes=0"),
        ("mlp", {"in_shape": (784,), "hidden": ()}, r"hidden=\(\)"),
        ("mlp", {"in_shape": ()}, r"in_shape=\(\)"),
        ("resnet18", {"in_shape": (3, 32, 32), "stem": "big"}, "stem='big'.*'cifar' or 'imagenet'"),
        ("densenet100", {"in_shape": (3, 32, 32), "compression": 0}, "compression=0"),
        ("densenet100", {"in_shape": (3, 32, 32), "growth": 0}, "growth=0"),
    ],
)
def test_wrong_values_are_refused_by_name(name, options, message):
    with pytest.raises(ValueError, match=message):
        nets.build(name, **options)
