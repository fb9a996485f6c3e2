"""Augmentation and normalisation of whole batches.

    recipe = augment.recipe("cifar-100")
    x = recipe.train(images, generator)         # uint8 (n, c, h, w) -> cropped, flipped, normalised float32
    x = recipe.test(images)                     # the same normalisation, nothing random, ever

All functions take and return batches of images, uint8 from 0 to 255 or floating point from 0 to 1. They draw from the
generator they are given, a fixed number of values a batch, and treat each sample on its own: one crop, one flip, one
colour for each. Random resized crops, `resize` and `centre_crop` also take lists of images that differ in size.
"""

from carm.data.augment.colours import colour_jitter
from carm.data.augment.crops import centre_crop, random_crop, random_flip, random_resized_crop, resize
from carm.data.augment.images import batch
from carm.data.augment.mixing import Mixed, cutmix
from carm.data.augment.pipeline import IMAGENET, PerSample, Recipe, crop_flip, normalize, photographs, recipe, recipes
from carm.data.augment.randaugment import RAND_AUGMENT, rand_augment

__all__ = [
    "IMAGENET",
    "RAND_AUGMENT",
    "Mixed",
    "PerSample",
    "Recipe",
    "batch",
    "centre_crop",
    "colour_jitter",
    "crop_flip",
    "cutmix",
    "normalize",
    "photographs",
    "rand_augment",
    "random_crop",
    "random_flip",
    "random_resized_crop",
    "recipe",
    "recipes",
    "resize",
]
