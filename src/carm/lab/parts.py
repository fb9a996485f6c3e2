"""The parts of a run, as its configuration describes them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from carm import nets
from carm.data import EncodedSplit, Source, Stream, load, split_by_class
from carm.data.augment import IMAGENET, Recipe, crop_flip, photographs, random_crop, recipe, recipes
from carm.data.registry import reader_options
from carm.data.views import Views, strong
from carm.lab.config import Config
from carm.memory.gate import Dynamic, Entropy, Gate, Random
from carm.memory.memory import Memory
from carm.methods.base import MakeNet, Method, stored_fields

_GATES: dict[str, type[Gate]] = {"entropy": Entropy, "random": Random, "dynamic": Dynamic}


def make_stream(config: Config) -> Stream:
    """The data set as a stream of tasks."""
    options: dict[str, Any] = {}
    if config.path:
        if "path" not in reader_options(config.data):
            raise ValueError(f"path={config.path!r}: {config.data} has a folder of its own; path is for folder and npz")
        options["path"] = config.path
    if config.size:
        if "resize" not in reader_options(config.data):
            raise ValueError(f"size={config.size}: {config.data} has arrays of one size; size is for image files")
        options |= {"resize": config.size, "crop": config.size}
    source = load(config.data, config.root or None, **options)
    return split_by_class(
        source,
        tasks=config.tasks,
        order=config.order,
        blurry=config.blurry,
        samples_per_class=config.per_class or None,
        seed=config.seed,
    )


def make_recipe(config: Config, source: Source) -> Recipe:
    """What is done to samples before the net."""
    encoded = isinstance(source.train, EncodedSplit)
    if source.name in recipes():
        found = recipe(source.name)
    elif encoded:
        found = photographs(*IMAGENET)
    else:
        colour = source.shape is not None and len(source.shape) == 3 and source.shape[0] == 3
        found = recipe("cifar-10" if colour else "plain")  # three readings of a sensor are no colours
    if encoded and config.size:
        found = crop_flip(found.mean, found.std)  # they all have one size, and need no other
    if config.augment == "none":
        return found.with_augment(*found.prepare)  # photographs must still be brought to one size
    if config.augment == "crop":
        return found.with_augment(*found.prepare, partial(random_crop, padding=4))
    return strong(found) if config.augment == "strong" else found


def net_maker(config: Config, method: Method, source: Source, samples: Recipe) -> MakeNet:
    """Nets as the configuration describes them; the number chooses the weights."""
    parts = (source.train.fetch([index]) for index in range(len(source.train)))
    first = next((part for part in parts if len(part)), None)  # the first that can be decoded
    if first is None:
        raise ValueError(f"{source.name}: none of its {len(source.train)} training samples can be decoded")
    decoder = source.train.decoder if isinstance(source.train, EncodedSplit) else None
    shape = tuple(Views(samples, decoder=decoder).test(stored_fields(first)["x"]).shape[1:])
    options: dict[str, Any] = {"width": config.width} if config.width else {}
    head = config.head or method.head

    def make(number: int) -> nets.Net:
        classes = len(source.classes) if head == "fixed" else 0
        seed = 1000 * config.seed + number
        net = nets.build(config.net, in_shape=shape, classes=classes, head=head, seed=seed, **options)
        if config.compile == "yes":
            net.backbone.compile()  # not the head: it grows, and would be compiled again for every task
        return net

    return make


def make_memory(config: Config, method: Method, directory: Path | None) -> Memory:
    """The episodic memory; `directory` is for the store, None: RAM only."""
    swaps = config.swap != "none" and directory is not None
    return Memory(
        method.slots(config.em),
        storage=directory if swaps else None,
        storage_capacity=(config.storage or None) if swaps else None,
        select=method.selection(),
        gate=_GATES[config.gate](config.ratio),
        swap=config.swap if swaps else "sync",
        throttle=(config.throttle or None) if swaps else None,
        seed=config.seed,
    )
