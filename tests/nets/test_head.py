import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from carm import nets
from carm.nets import FixedHead, GrowingHead, mask_seen, mask_task, task_table
from carm.nets.head import task_mates

# -- growing


@pytest.mark.parametrize("dim", [64, 100, 160, 342, 512])
@pytest.mark.parametrize("steps", [(2, 4, 6, 8, 10), (10, 20, 100), (1, 2), (5, 6)])
def test_growth_keeps_old_logits_bit_identical(dim, steps):
    """One larger matrix fails this for most of these shapes: its products are summed in another order."""
    x = torch.randn(128, dim, generator=torch.Generator().manual_seed(0))
    head = GrowingHead(dim, steps[0])
    for classes in steps[1:]:
        before = head(x)
        head.grow(classes)
        after = head(x)
        assert after.shape == (128, classes)
        assert torch.equal(after[:, : before.shape[1]], before)


def test_growth_keeps_learned_rows_and_their_gradient():
    head = GrowingHead(3, 2)
    with torch.no_grad():
        head.blocks[0].weight.copy_(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
        head.blocks[0].bias.copy_(torch.tensor([0.5, -0.5]))
    new = head.grow(3)
    assert [tuple(p.shape) for p in new] == [(1, 3), (1,)]
    assert head.weight[:2].tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    logits = head(torch.tensor([[1.0, 0.0, -1.0]]))
    assert logits[0, :2].tolist() == [1 - 3 + 0.5, 4 - 6 - 0.5]
    logits.sum().backward()
    assert all(p.grad is not None for p in head.parameters())


def test_logits_are_weight_times_features_plus_bias():
    head = GrowingHead(6, 2)
    head.grow(5)
    x = torch.rand(4, 6)
    assert torch.allclose(head(x), x @ head.weight.T + head.bias, atol=1e-6)
    assert head.weight.requires_grad


def test_growing_to_the_same_size_does_nothing_and_shrinking_is_refused():
    head = GrowingHead(4, 3)
    assert head.grow(3) == []
    with pytest.raises(ValueError, match=r"classes=2.*has 3"):
        head.grow(2)


def test_an_empty_head_has_no_logits_yet():
    head = GrowingHead(4)
    assert head(torch.rand(3, 4)).shape == (3, 0)
    assert head.weight.shape == (0, 4)
    assert head.bias.shape == (0,)
    head.grow(2)
    assert head(torch.rand(3, 4)).shape == (3, 2)


def test_a_rebuilt_optimizer_trains_old_and_new_rows():
    net = nets.build("mlp", in_shape=(6,), classes=2)
    x, y = torch.rand(8, 6), torch.arange(8) % 4
    net.grow(4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    before = net.head.weight.detach()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
    assert ((net.head.weight - before).abs().sum(1) > 0).all()


def test_an_optimizer_may_take_on_the_new_rows_and_keep_its_momentum():
    net = nets.build("mlp", in_shape=(6,), classes=2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    F.cross_entropy(net(torch.rand(8, 6)), torch.arange(8) % 2).backward()
    optimizer.step()
    old = net.head.blocks[0].weight
    momentum = optimizer.state[old]["momentum_buffer"].clone()
    optimizer.add_param_group({"params": net.grow(4)})
    assert net.head.blocks[0].weight is old
    assert torch.equal(optimizer.state[old]["momentum_buffer"], momentum)
    optimizer.zero_grad()
    before = net.head.weight.detach()
    F.cross_entropy(net(torch.rand(8, 6)), torch.arange(8) % 4).backward()
    optimizer.step()
    assert ((net.head.weight - before).abs().sum(1) > 0).all()


def test_new_rows_depend_on_seed_and_place_only():
    def grown(seed: int) -> torch.Tensor:
        head = GrowingHead(16, 2, seed=seed)
        torch.rand(5)
        head.grow(4)
        return head.weight.detach()

    before = torch.random.get_rng_state()
    GrowingHead(16, 2).grow(4)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(grown(1), grown(1))
    assert not torch.equal(grown(1), grown(2))
    assert not torch.equal(grown(1)[:2], grown(1)[2:])


def test_rows_start_within_the_usual_range():
    head = GrowingHead(64, 500)
    for values in (head.weight, head.bias):
        assert 0.95 / 8 < float(values.detach().abs().max()) <= 1 / 8
        assert abs(float(values.detach().mean())) < 0.02


def test_new_rows_have_the_type_of_the_net():
    for classes in (0, 2):
        head = GrowingHead(4, classes).to(torch.float64)
        head.grow(4)
        assert {p.dtype for p in head.parameters()} == {torch.float64}


# -- state


@pytest.mark.parametrize("start", [(), (2,), (2, 4), (3,), (2, 4, 9, 12)])
def test_a_state_dict_brings_its_size_along(start):
    source = GrowingHead(5, 0, seed=1)
    for classes in (2, 4, 9):
        source.grow(classes)
    target = GrowingHead(5, 0, seed=2)
    for classes in start:
        target.grow(classes)
    target.load_state_dict(source.state_dict())
    x = torch.rand(7, 5)
    assert torch.equal(target(x), source(x))


def test_loading_into_the_same_shape_keeps_the_parameters_of_the_optimizer():
    source, target = GrowingHead(5, 3, seed=1), GrowingHead(5, 3, seed=2)
    parameter = target.blocks[0].weight
    target.load_state_dict(source.state_dict())
    assert target.blocks[0].weight is parameter


def test_a_resumed_run_grows_the_rows_of_an_uninterrupted_one():
    net = nets.build("mlp", in_shape=(6,), classes=2, seed=5)
    resumed = nets.build("mlp", in_shape=(6,), seed=99)
    resumed.load_state_dict(net.state_dict())
    net.grow(7)
    resumed.grow(7)
    x = torch.rand(3, 6)
    assert torch.equal(net(x), resumed(x))


def test_a_state_without_a_head_leaves_the_head_alone():
    net = nets.build("mlp", in_shape=(6,), classes=3)
    before = net.head.weight.detach()
    net.load_state_dict({f"backbone.{key}": v for key, v in net.backbone.state_dict().items()}, strict=False)
    assert torch.equal(net.head.weight, before)
    net.load_state_dict(nets.build("mlp", in_shape=(6,)).state_dict())
    assert net.classes == 0


def test_a_state_with_missing_parts_is_still_refused():
    state = GrowingHead(5, 3).state_dict()
    del state["blocks.0.bias"]
    with pytest.raises(RuntimeError, match=r"blocks\.0\.bias"):
        GrowingHead(5, 3).load_state_dict(state)


# -- fixed


def test_a_fixed_head_has_all_classes_and_refuses_more():
    head = FixedHead(4, 10, seed=1)
    assert head(torch.rand(2, 4)).shape == (2, 10)
    assert head.grow(6) == []
    assert head.classes == 10
    assert head.weight.shape == (10, 4)
    assert head.bias.shape == (10,)
    with pytest.raises(ValueError, match=r"classes=11.*has 10"):
        head.grow(11)
    with pytest.raises(ValueError, match="classes=0"):
        FixedHead(4, 0)


# -- masks


def test_mask_seen_in_all_its_forms():
    logits = torch.tensor([[5.0, 1.0, 9.0, 2.0]])
    for seen in (2, np.int64(2), [0, 1], torch.tensor([1, 0]), torch.tensor([True, True, False, False])):
        masked = mask_seen(logits, seen)
        assert masked[0, :2].tolist() == [5.0, 1.0]
        assert masked.argmax(1).item() == 0
        assert masked.softmax(1)[0, 2:].tolist() == [0.0, 0.0]
    assert mask_seen(logits, [1, 3]).argmax(1).item() == 3
    assert logits.tolist() == [[5.0, 1.0, 9.0, 2.0]]


def test_masked_losses_by_hand():
    logits = torch.tensor([[1.0, 2.0, 7.0]], requires_grad=True)
    masked = mask_seen(logits, 2)
    loss = F.cross_entropy(masked, torch.tensor([0]))
    assert loss.item() == pytest.approx(math.log(1 + math.e), rel=1e-6)
    loss.backward()
    p = 1 / (1 + math.e)
    assert logits.grad[0].tolist() == pytest.approx([p - 1, 1 - p, 0.0], rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_closed_logits_never_make_nan(dtype):
    logits = torch.tensor([[30.0, -30.0, 12.0]], dtype=dtype)
    masked = mask_seen(logits, 2)
    logp = masked.log_softmax(1)
    assert torch.isfinite(-(logp.exp() * logp).sum())
    soft = torch.tensor([[0.5, 0.5, 0.0]], dtype=dtype)
    assert torch.isfinite(F.cross_entropy(masked, soft))
    binary = F.binary_cross_entropy_with_logits(masked, soft, reduction="none")
    assert binary[0, 2].item() == 0


def test_mask_task_leaves_each_sample_the_classes_of_its_task():
    table = task_table([[0, 3], [1, 2]])
    assert table.tolist() == [[True, False, False, True], [False, True, True, False]]
    logits = torch.tensor([[0.0, 9.0, 8.0, 1.0], [0.0, 2.0, 3.0, 9.0]])
    masked = mask_task(logits, torch.tensor([0, 1]), table)
    assert masked.argmax(1).tolist() == [3, 2]
    assert masked.softmax(1)[0, 1:3].tolist() == [0.0, 0.0]


def test_mask_task_with_a_head_that_is_still_growing():
    table = task_table([[0, 1], [2, 3]])
    logits = torch.zeros(2, 2)
    assert mask_task(logits, torch.tensor([0, 0]), table).tolist() == [[0, 0], [0, 0]]
    with pytest.raises(ValueError, match=r"task=1.*2 logits"):
        mask_task(logits, torch.tensor([0, 1]), table)


def test_a_class_may_belong_to_several_tasks():
    table = task_table([[0, 1], [1, 2]], classes=5)
    assert table.shape == (2, 5)
    assert table.sum(0).tolist() == [1, 2, 1, 0, 0]


def test_classes_that_have_shared_a_task_are_mates():
    mates = task_mates([(0, 3), (1, 2), (2, 4)], 6)
    assert mates.dtype == torch.bool
    found = [row.nonzero()[:, 0].tolist() for row in mates]
    assert found == [[0, 3], [1, 2], [1, 2, 4], [0, 3], [2, 4], []]  # 5 has been in no task


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z: mask_seen(z, 0), "seen=0"),
        (lambda z: mask_seen(z, 4), "seen=4.*3 logits"),
        (lambda z: mask_seen(z, torch.tensor(2)), "seen=2: must be labels"),
        (lambda z: mask_seen(z, [3]), r"seen=\[3\].*0 to 2"),
        (lambda z: mask_seen(z, []), r"seen=\[\]"),
        (lambda z: mask_seen(z, torch.ones(2, dtype=torch.bool)), r"shape \(2,\).*3 logits"),
        (lambda z: mask_task(z, torch.tensor([0]), task_table([[0], [2]])), r"task: shape \(1,\)"),
        (lambda z: mask_task(z, torch.tensor([0, 1]), task_table([[0], [1]])), "3 classes or more"),
        (lambda z: task_table([[], []]), "at least one"),
        (lambda z: task_table([[4]], classes=3), "label 4.*classes=3"),
    ],
)
def test_wrong_masks_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(2, 3))
