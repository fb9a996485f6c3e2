import colorsys
import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps

from carm.data import augment
from carm.data.augment import Recipe, colours, crops, images, randaugment
from carm.data.views import Views


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def one_thread():
    """Batches this small gain nothing from a second thread, and on a busy machine wait for it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def photos(n: int = 8, h: int = 32, w: int = 32, seed: int = 0) -> torch.Tensor:
    """Smooth colours with some noise, every level in use: closer to photographs than pure noise."""
    coarse = torch.rand(n, 3, 4, 4, generator=gen(seed))
    smooth = F.interpolate(coarse, (h, w), mode="bicubic") + 0.05 * torch.randn(n, 3, h, w, generator=gen(seed + 1))
    return (smooth.clamp(0, 1) * 255).round().to(torch.uint8)


def coordinates(n: int, h: int, w: int) -> torch.Tensor:
    """Images that say where each pixel is: channel 0 is row + 1, channel 1 is column + 1, 0 is outside."""
    rows = torch.arange(1, h + 1, dtype=torch.uint8).view(h, 1).expand(h, w)
    columns = torch.arange(1, w + 1, dtype=torch.uint8).expand(h, w)
    return torch.stack([rows, columns]).expand(n, 2, h, w).clone()


def pil(image: torch.Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


STEPS = {
    "crop": partial(augment.random_crop, padding=4),
    "crop to size": partial(augment.random_crop, padding=0, size=24),
    "flip": augment.random_flip,
    "resized crop": partial(augment.random_resized_crop, size=24),
    "jitter": partial(augment.colour_jitter, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    "rand augment": augment.rand_augment,
}


@pytest.mark.parametrize("step", STEPS.values(), ids=list(STEPS))
def test_the_generator_decides_everything(step):
    x = photos(32)
    kept = x.clone()
    before = torch.random.get_rng_state()
    a, b, c = step(x, generator=gen(1)), step(x, generator=gen(1)), step(x, generator=gen(2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(x, kept)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert a.dtype == torch.uint8
    generator = gen(1)
    assert not torch.equal(step(x, generator=generator), step(x, generator=generator))


@pytest.mark.parametrize("step", STEPS.values(), ids=list(STEPS))
def test_samples_of_a_batch_are_treated_differently(step):
    out = step(photos(1).expand(32, -1, -1, -1), generator=gen())
    kinds = len({tuple(image.flatten().tolist()) for image in out})
    assert kinds == 2 if step is augment.random_flip else kinds > 10


@pytest.mark.parametrize("step", STEPS.values(), ids=list(STEPS))
def test_an_empty_batch_stays_empty(step):
    out = step(photos(4)[:0], generator=gen())
    assert out.shape[:2] == (0, 3)


# -- crops and flips


def test_random_crop_cuts_every_window_equally_often():
    n, padding = 8100, 4
    out = augment.random_crop(coordinates(n, 12, 10), padding=padding, generator=gen())
    middle = out[:, :, 6, 5].long()  # always inside the image: its value is its place
    down, right = middle[:, 0] - 7 + padding, middle[:, 1] - 6 + padding
    counts = torch.bincount(down * 9 + right, minlength=81)
    assert len(counts) == 81
    assert float(((counts - 100) ** 2 / 100).sum()) < 150  # chi square with 80 degrees of freedom: mean 80, sd 13
    framed = F.pad(coordinates(1, 12, 10)[0], (padding,) * 4)
    for image, d, r in zip(out[:300], down, right, strict=False):
        assert torch.equal(image, framed[:, d : d + 12, r : r + 10])


def test_random_crop_to_a_size_without_padding():
    out = augment.random_crop(coordinates(200, 9, 7), padding=0, size=5, generator=gen())
    assert out.shape == (200, 2, 5, 5)
    assert out.min() >= 1  # no frame
    assert set((out[:, 0, 0, 0] - 1).tolist()) == {0, 1, 2, 3, 4}
    assert set((out[:, 1, 0, 0] - 1).tolist()) == {0, 1, 2}


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_crops_and_flips_take_any_type_and_layout(memory_format):
    x = photos(16)
    for step in (STEPS["crop"], STEPS["flip"]):
        want = step(x, generator=gen())
        got = step(x.to(torch.float32).to(memory_format=memory_format), generator=gen())
        assert torch.equal(got, want.to(torch.float32))


def test_random_flip_mirrors_the_share_it_was_asked_for():
    x = photos(2000, 4, 4)
    for p in (0.0, 0.3, 1.0):
        out = augment.random_flip(x, p=p, generator=gen())
        flipped = (out == x.flip(3)).flatten(1).all(1)
        assert ((out == x).flatten(1).all(1) | flipped).all()
        assert abs(float(flipped.float().mean()) - p) < 0.04


def test_resized_crop_of_the_whole_image_is_the_image():
    x = photos(4)
    out = augment.random_resized_crop(x, size=32, scale=(1, 1), ratio=(1, 1), generator=gen())
    assert torch.equal(out, x)


def test_resized_crop_is_the_box_resized():
    x = photos(6, 40, 50)
    out = augment.random_resized_crop(x, size=20, generator=gen(3))
    boxes = crops._boxes([(40, 50)] * 6, (0.08, 1.0), (3 / 4, 4 / 3), gen(3))
    for image, got, (top, left, height, width) in zip(x, out, boxes, strict=True):
        cut = pil(image[:, top : top + height, left : left + width])
        want = tensor(cut.resize((20, 20), Image.Resampling.BILINEAR))
        assert (got.int() - want.int()).abs().max() <= 1


def test_boxes_lie_inside_with_the_area_and_aspect_asked_for():
    sizes = [(200, 300), (300, 200)] * 1000
    scale, ratio = (0.2, 0.9), (0.5, 2.0)
    boxes = torch.tensor(crops._boxes(sizes, scale, ratio, gen())).double()
    tall, wide = torch.tensor(sizes).double().T
    top, left, height, width = boxes.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= tall).all()
    assert (left + width <= wide).all()
    share = height * width / (tall * wide)
    assert share.min() > 0.19
    assert share.max() < 0.91
    assert 0.45 < float(share.mean()) < 0.56
    aspect = (width / height).log2()
    assert aspect.min() > -1.05
    assert aspect.max() < 1.05
    places = torch.stack([top / (tall - height).clamp(min=1), left / (wide - width).clamp(min=1)])
    assert abs(float(places.mean()) - 0.5) < 0.03


@pytest.mark.parametrize("size", [(2, 400), (400, 2), (1, 1)])
def test_boxes_in_extreme_images_are_centred_and_allowed(size):
    (box,) = crops._boxes([size], (0.9, 1.0), (3 / 4, 4 / 3), gen())
    top, left, height, width = box
    assert 1 <= height <= size[0]
    assert 1 <= width <= size[1]
    assert 0.6 < width / height < 1.6
    assert abs(2 * top + height - size[0]) <= 1
    assert abs(2 * left + width - size[1]) <= 1


def test_images_that_differ_in_size():
    x = [photos(1, 40, 60)[0], photos(1, 90, 30)[0].numpy(), photos(1, 24, 24)[0]]
    out = augment.random_resized_crop(x, size=24, generator=gen())
    assert out.shape == (3, 3, 24, 24)
    short = augment.resize(x, size=24)
    assert [tuple(i.shape) for i in short] == [(3, 24, 36), (3, 72, 24), (3, 24, 24)]
    assert augment.centre_crop(short, size=20).shape == (3, 3, 20, 20)
    with pytest.raises(ValueError, match="must be one shape"):
        augment.random_flip(x, generator=gen())
    with pytest.raises(ValueError, match="no image"):
        augment.random_resized_crop([], size=24, generator=gen())


def test_resize_agrees_with_the_imaging_library():
    x = photos(3, 50, 80)
    out = augment.resize(x, size=32)
    assert out.shape == (3, 3, 32, 51)
    for image, got in zip(x, out, strict=True):
        want = tensor(pil(image).resize((51, 32), Image.Resampling.BILINEAR))
        assert (got.int() - want.int()).abs().max() <= 1


def test_centre_crop_takes_the_middle():
    out = augment.centre_crop(coordinates(2, 10, 7), size=4)
    assert out[0, 0, :, 0].tolist() == [4, 5, 6, 7]
    assert out[0, 1, 0].tolist() == [3, 4, 5, 6]  # of seven columns, two go on the left and one on the right


# -- colour


@pytest.mark.parametrize(
    ("step", "enhancer"),
    [
        (colours.blend_brightness, ImageEnhance.Brightness),
        (colours.blend_contrast, ImageEnhance.Contrast),
        (colours.blend_saturation, ImageEnhance.Color),
        (colours.blend_sharpness, ImageEnhance.Sharpness),
    ],
)
def test_colour_steps_agree_with_the_imaging_library(step, enhancer):
    x = photos(5)
    factors = torch.tensor([0.0, 0.4, 1.0, 1.5, 1.9])
    out = images.back_to(step(images.to_float(x), factors.view(-1, 1, 1, 1)), x)
    for image, got, factor in zip(x, out, factors.tolist(), strict=True):
        want = tensor(enhancer(pil(image)).enhance(factor))
        assert (got.int() - want.int()).abs().max() <= 2  # the library rounds its intermediate results
        assert ((got.int() - want.int()).abs() <= 1).float().mean() > 0.99


def test_hue_turns_the_colour_circle():
    x = torch.rand(3, 3, 4, 4, generator=gen())
    x[0, :, 0, 0] = 0.5  # grey has no hue
    x[0, :, 0, 1] = 0.0
    turns = [0.1, -0.3, 0.5]
    out = colours.turn_hue(x, torch.tensor(turns))
    for image, got, turn in zip(x, out, turns, strict=True):
        for pixel, new in zip(image.flatten(1).T.tolist(), got.flatten(1).T.tolist(), strict=True):
            h, s, v = colorsys.rgb_to_hsv(*pixel)
            assert new == pytest.approx(colorsys.hsv_to_rgb((h + turn) % 1, s, v), abs=1e-5)


def test_jitter_without_strength_changes_nothing():
    x = photos(4)
    assert torch.equal(augment.colour_jitter(x, generator=gen()), x)


def test_jitter_stays_within_its_range():
    grey = torch.full((500, 3, 2, 2), 100, dtype=torch.uint8)
    out = augment.colour_jitter(grey, brightness=0.3, generator=gen()).float()
    assert (out == out[:, :1, :1, :1]).all()
    assert 70 <= out.min() < 72
    assert 128 < out.max() <= 130
    assert abs(float(out.mean()) - 100) < 3


def test_grey_images_have_no_colour_to_change():
    x = torch.rand(4, 1, 8, 8, generator=gen())
    out = augment.colour_jitter(x, saturation=0.5, hue=0.5, generator=gen())
    assert torch.equal(out, x)
    assert augment.rand_augment((x * 255).to(torch.uint8), generator=gen()).shape == x.shape


# -- RandAugment


def at(name: str, x: torch.Tensor, level: float) -> torch.Tensor:
    return augment.RAND_AUGMENT[name](x, torch.full((len(x),), level))


def test_table_operations_agree_with_the_imaging_library():
    x = photos(6)
    x[0] = 77  # one level only
    x[1, 0] = torch.where(x[1, 0] > 100, 200, 3)  # two levels only
    for name, level, function in [
        ("posterize", 0.5, lambda image: ImageOps.posterize(image, 6)),
        ("posterize", 1.0, lambda image: ImageOps.posterize(image, 4)),
        ("solarize", 0.5, lambda image: ImageOps.solarize(image, 128)),
        ("solarize", -0.75, lambda image: ImageOps.solarize(image, 64)),
        ("equalize", 0.3, ImageOps.equalize),
    ]:
        want = torch.stack([tensor(function(pil(image))) for image in x])
        assert torch.equal(at(name, x, level), want), name
    want = torch.stack([tensor(ImageOps.autocontrast(pil(image))) for image in x])
    assert (at("autocontrast", x, 0.3).int() - want.int()).abs().max() <= 1  # it computes in floating point


@pytest.mark.parametrize("sign", [1, -1])
def test_warps_agree_with_the_imaging_library(sign):
    x = photos(4, 32, 40)

    def warped(*matrix: float) -> torch.Tensor:
        shape = (40, 32)
        return torch.stack([tensor(pil(i).transform(shape, Image.Transform.AFFINE, matrix)) for i in x])

    for name, level, want in [
        ("shear-x", 0.5, warped(1, sign * 0.15, 0, 0, 1, 0)),
        ("shear-y", 0.5, warped(1, 0, 0, sign * 0.15, 1, 0)),
        ("translate-x", 0.5, warped(1, 0, sign * 9, 0, 1, 0)),  # 150/331 of 40 pixels, half of it
        ("translate-y", 0.5, warped(1, 0, 0, 0, 1, sign * 7)),
        ("rotate", 0.5, torch.stack([tensor(pil(i).rotate(sign * 15)) for i in x])),
    ]:
        got = at(name, x, sign * level)
        assert (got == want).float().mean() > 0.99, name  # ties at pixel borders may fall either way


def test_level_zero_changes_nothing():
    x = photos(4)
    for name in augment.RAND_AUGMENT:
        if name not in ("autocontrast", "equalize"):
            assert torch.equal(at(name, x, 0.0), x), name


def test_every_operation_is_chosen_equally_often(monkeypatch):
    calls = dict.fromkeys(augment.RAND_AUGMENT, 0)

    def counting(name):
        def operation(x, level):
            calls[name] += len(x)
            assert level.abs().tolist() == pytest.approx([0.3] * len(x))
            return x

        return operation

    monkeypatch.setattr(randaugment, "RAND_AUGMENT", {name: counting(name) for name in calls})
    x = photos(1400, 2, 2)
    assert torch.equal(augment.rand_augment(x, count=2, generator=gen()), x)  # every image back in its place
    assert sum(calls.values()) == 2800
    assert all(140 < count < 260 for count in calls.values())


def test_directions_are_random_and_images_keep_their_places(monkeypatch):
    def stamp(x, level):
        return torch.where(level.view(-1, 1, 1, 1) > 0, x + 100, x)

    monkeypatch.setattr(randaugment, "RAND_AUGMENT", {"a": stamp, "b": stamp, "c": stamp})
    x = (torch.arange(1000) % 100).to(torch.uint8).view(-1, 1, 1, 1)
    out = augment.rand_augment(x, count=1, generator=gen())
    assert torch.equal(out % 100, x)
    assert 400 < int((out >= 100).sum()) < 600


# -- CutMix


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_lam_is_the_exact_share_of_own_pixels(alpha):
    n, h, w = 16, 11, 17
    x = torch.arange(n, dtype=torch.float32).view(n, 1, 1, 1).expand(n, 3, h, w)
    y = torch.arange(n)
    generator = gen()
    for _ in range(40):
        mixed, (y_a, y_b, lam) = augment.cutmix(x, y, alpha=alpha, generator=generator)
        assert torch.equal(y_a, y)
        own = mixed == y_a.view(n, 1, 1, 1)
        other = mixed == y_b.view(n, 1, 1, 1)
        assert (own | other).all()
        moved = y_a != y_b
        share = own[moved][:, 0].sum((1, 2)).double() / (h * w)
        assert share.tolist() == pytest.approx([lam] * int(moved.sum()), abs=1e-12)
        assert sorted(y_b.tolist()) == y.tolist()


def test_lam_is_beta_before_clipping():
    """Against an independent simulation: the area is 1 - Beta, the centre uniform, what sticks out is lost."""
    n = 64
    x, y = torch.zeros(2, 1, n, n), torch.tensor([0, 1])
    generator = gen()
    for alpha in (0.5, 1.0, 4.0):
        lams = np.array([augment.cutmix(x, y, alpha=alpha, generator=generator)[1].lam for _ in range(1000)])
        rng = np.random.default_rng(1)
        side = (n * np.sqrt(1 - rng.beta(alpha, alpha, 100_000))).astype(int)
        kept = 1
        for _ in range(2):
            start = rng.integers(n, size=len(side)) - side // 2
            kept = kept * (np.clip(start + side, 0, n) - np.clip(start, 0, n)) / n
        want = 1 - kept
        assert lams.mean() == pytest.approx(want.mean(), abs=4 * want.std() / 1000**0.5)
        assert lams.std() == pytest.approx(want.std(), rel=0.12)


def test_the_mixed_loss_by_hand():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    mixed = augment.Mixed(torch.tensor([0, 1]), torch.tensor([1, 0]), 0.75)
    first = [math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))]  # for y_a, for y_b
    second = [math.log(1 + math.exp(-1)), math.log(1 + math.exp(1))]
    want = (0.75 * (first[0] + second[0]) + 0.25 * (first[1] + second[1])) / 2
    assert mixed.loss(logits).item() == pytest.approx(want, rel=1e-6)
    total = mixed.loss(logits, partial(F.cross_entropy, reduction="sum"))
    assert total.item() == pytest.approx(2 * want, rel=1e-6)


def test_cutmix_with_a_probability():
    x, y = torch.rand(4, 3, 8, 8), torch.arange(4)
    out, mixed = augment.cutmix(x, y, p=0.0, generator=gen())
    assert torch.equal(out, x)
    assert mixed.lam == 1
    logits = torch.rand(4, 4)
    assert torch.equal(mixed.loss(logits), F.cross_entropy(logits, y))
    generator = gen()
    changed = sum(augment.cutmix(x, y, p=0.3, generator=generator)[1].lam < 1 for _ in range(500))
    assert 110 < changed < 190
    kept = x.clone()
    a, b = (augment.cutmix(x, y, generator=gen(5))[0] for _ in range(2))
    assert torch.equal(a, b)
    assert torch.equal(x, kept)


# -- recipes


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("cifar-10", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ("cifar-100", (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)),
        ("tiny-imagenet", (0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821)),
        ("imagenet-100", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ],
)
def test_normalisation_by_hand(name, mean, std):
    recipe = augment.recipe(name)
    size = 224 if name == "imagenet-100" else 32
    x = torch.zeros(1, 3, size, size, dtype=torch.uint8)
    x[0, 0], x[0, 1], x[0, 2] = 255, 0, 51
    out = recipe.test(x)[0, :, 5, 5].tolist()
    want = [(value - m) / s for value, m, s in zip((1.0, 0.0, 0.2), mean, std, strict=True)]
    assert out == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize("name", ["cifar-10", "cifar-100", "tiny-imagenet"])
def test_small_images_are_cropped_with_padding_4_and_flipped(name):
    recipe = augment.recipe(name)
    size = 64 if name == "tiny-imagenet" else 32
    place = coordinates(600, size, size)
    x = torch.cat([place, place[:, :1]], 1)
    out = recipe.train(x, gen())
    assert out.shape == x.shape
    assert out.dtype == torch.float32
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (recipe.mean, recipe.std))
    raw = ((out * std + mean) * 255).round().long()
    middle = size // 2
    down = raw[:, 0, middle, middle] - (middle + 1)
    assert set(down.tolist()) == set(range(-4, 5))
    step = raw[:, 1, middle, middle + 1] - raw[:, 1, middle, middle]
    assert set(step.tolist()) == {1, -1}  # columns run backwards where the image is flipped
    assert raw.min() == 0  # the frame is black before normalisation
    assert torch.equal(recipe.test(x), augment.normalize(x, recipe.mean, recipe.std))


def test_photographs():
    recipe = augment.recipe("imagenet")
    x = photos(2, 300, 400)
    assert recipe.train(x, gen()).shape == (2, 3, 224, 224)
    out = recipe.test(x)
    assert out.shape == (2, 3, 224, 224)
    shrunk = pil(x[0]).resize((341, 256), Image.Resampling.BILINEAR)
    want = tensor(shrunk.crop((58, 16, 58 + 224, 16 + 224)))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (recipe.mean, recipe.std))
    assert ((out[0] * std + mean) * 255 - want).abs().max() < 1.1
    assert recipe.train([x[0], x[1][:, :250]], gen()).shape == (2, 3, 224, 224)
    assert recipe.test([x[0], x[1][:, :250]]).shape == (2, 3, 224, 224)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "digits", "plain"])
def test_no_augmentation_where_none_is_usual(name):
    recipe = augment.recipe(name)
    x = torch.randint(0, 256, (5, 1, 28, 28), dtype=torch.uint8, generator=gen())
    generator = gen()
    before = generator.get_state()
    assert torch.allclose(recipe.train(x, generator), x / 255)
    assert torch.equal(generator.get_state(), before)
    assert torch.allclose(recipe.test(x.flatten(1)), x.flatten(1) / 255)


@pytest.mark.parametrize("name", augment.recipes())
def test_test_images_are_never_augmented(name):
    recipe = augment.recipe(name)
    x = photos(4, 224, 224) if "imagenet-1" in name else photos(4)
    first = recipe.test(x)
    recipe.train(x, gen())
    torch.rand(3)
    assert torch.equal(recipe.test(x), first)
    with pytest.raises(ValueError, match="never augmented"):
        Recipe(prepare=(augment.random_flip,))


def test_arrays_are_taken_too_even_read_only(recwarn):
    x = photos(4)
    array = x.numpy().copy()
    array.flags.writeable = False
    recipe = augment.recipe("cifar-10")
    assert torch.equal(recipe.test(array), recipe.test(x))
    assert torch.equal(recipe.train(array, gen()), recipe.train(x, gen()))
    assert torch.equal(recipe.test(list(array)), recipe.test(x))
    assert len(recwarn) == 0


class Invert:
    """A transform of one image in the manner of torchvision: an object with `__call__`."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        assert image.ndim == 3
        return 255 - image


def test_your_own_transforms():
    x = photos(4)
    plain = augment.recipe("cifar-10")
    inverted = augment.normalize(255 - x, plain.mean, plain.std)
    for own in (lambda batch: 255 - batch, augment.PerSample(Invert())):
        recipe = plain.with_augment(own)
        assert torch.allclose(recipe.train(x, gen()), inverted)
        assert torch.equal(recipe.test(x), plain.test(x))

    def noisy(batch, *, generator):
        return batch + torch.randint(0, 2, batch.shape, generator=generator, dtype=torch.uint8)

    both = plain.with_augment(*plain.augment, partial(augment.rand_augment, count=1), noisy)
    assert torch.equal(both.train(x, gen()), both.train(x, gen()))
    assert not torch.equal(both.train(x, gen()), both.train(x, gen(1)))


def test_floating_point_is_taken_as_normalised():
    recipe = augment.recipe("cifar-10")
    done = recipe.with_augment(lambda batch: batch.float() - 3)
    x = photos(2)
    assert torch.equal(done.train(x, gen()), x.float() - 3)
    assert torch.equal(recipe.test(x.float()), x.float())


@pytest.mark.parametrize("kind", [torch.float64, torch.float16])
def test_other_floating_point_becomes_what_nets_compute_in(kind):
    x = torch.rand(4, 6, dtype=kind)
    recipe = augment.recipe("plain")
    for done in (recipe.test(x), recipe.train(x, gen())):
        assert done.dtype == torch.float32 and torch.equal(done, x.float())


@pytest.mark.parametrize("form", [torch.as_tensor, list, np.asarray], ids=["tensor", "list", "array"])
def test_perturbed_copies_leave_the_numbers_of_a_transform_alone(form):
    """Colours are changed between 0 and 1; what a transform has normalised lies elsewhere."""
    x = photos()

    def normalised(images: torch.Tensor) -> torch.Tensor:
        return (images.float() - 128) / 40

    views = Views(Recipe(augment=(lambda images: form(normalised(images)),)))
    assert torch.equal(views.perturbed(x), normalised(x))
    assert not torch.equal(Views(Recipe(augment=(lambda images: images,))).perturbed(x), x / 255)


def test_a_per_sample_transform_may_bring_photographs_to_one_size():
    small = augment.PerSample(lambda image: image[:, :8, :8])
    assert Recipe(augment=(small,)).train([photos(1, 9, 12)[0], photos(1, 20, 8)[0]], gen()).shape == (2, 3, 8, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: augment.random_crop(x, padding=-1, generator=gen()), r"padding=-1"),
        (lambda x: augment.random_crop(x, padding=1, size=20, generator=gen()), r"size=20.*18"),
        (lambda x: augment.random_crop(x[0], padding=1, generator=gen()), r"shape \(3, 16, 16\)"),
        (lambda x: augment.random_flip(x, p=1.5, generator=gen()), r"p=1\.5.*0 to 1"),
        (lambda x: augment.random_resized_crop(x, size=0, generator=gen()), r"size=0"),
        (lambda x: augment.random_resized_crop(x, size=8, scale=(0, 1), generator=gen()), r"scale=\(0, 1\)"),
        (lambda x: augment.random_resized_crop(x, size=8, ratio=(2, 1), generator=gen()), r"ratio=\(2, 1\)"),
        (lambda x: augment.resize(x, size=0), r"size=0"),
        (lambda x: augment.centre_crop(x, size=17), r"size=17.*16"),
        (lambda x: augment.colour_jitter(x, hue=0.6, generator=gen()), r"hue=0\.6.*0\.5"),
        (lambda x: augment.colour_jitter(x, contrast=-1, generator=gen()), r"contrast=-1"),
        (lambda x: augment.rand_augment(x.float(), generator=gen()), r"float32.*uint8"),
        (lambda x: augment.rand_augment(x, magnitude=9, generator=gen()), r"magnitude=9.*0 to 1"),
        (lambda x: augment.rand_augment(x, count=-1, generator=gen()), r"count=-1"),
        (lambda x: augment.cutmix(x, torch.zeros(3), generator=gen()), r"3 labels for 2 images"),
        (lambda x: augment.cutmix(x, torch.zeros(2), alpha=0, generator=gen()), r"alpha=0"),
        (lambda x: augment.recipe("cifar-10").test(x[:, :1]), r"\(n, 3, \.\.\.\)"),
        (lambda x: augment.recipe("cifar-10").test(x.long()), r"int64.*uint8"),
        (lambda x: augment.normalize(x.float(), (0.0,), (1.0,)), r"float32.*uint8"),
        (lambda x: augment.recipe("cifar-1000"), r"Did you mean 'cifar-100'\?.*tiny-imagenet"),
        (lambda x: Recipe(mean=(0.5,), std=(0.1, 0.2)), r"one length"),
        (lambda x: Recipe(std=(0.0,)), r"std=\(0\.0,\)"),
        (lambda x: Recipe(augment=("flip",)), r"'flip'.*callable"),
    ],
)
def test_wrong_values_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call(photos(2, 16, 16))


def test_names_are_read_generously():
    for spelling in ("cifar10", "CIFAR_10", "Cifar 10"):
        assert augment.recipe(spelling) is augment.recipe("cifar-10")
