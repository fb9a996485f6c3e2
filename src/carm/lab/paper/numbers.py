"""The paper's own numbers, to stand beside ours: percent, mean and standard deviation over its five runs.

Its figures were published without numbers; of those there are only the sentences in the text, which `shape` checks.
"""

from __future__ import annotations

from typing import NamedTuple

METHODS = ("er", "icarl", "tiny-er", "bic", "gdumb", "der++", "rm")
"""In the order of the paper's columns."""
SETTINGS = ("Original", "CarM-50", "CarM-100")


class Number(NamedTuple):
    """A mean, and its standard deviation where one was given."""

    mean: float
    sd: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.sd is None else f"{self.mean:.2f}±{self.sd:.2f}"


Row = dict[str, Number]


def _number(text: str) -> Number:
    mean, _, sd = text.partition("±")
    return Number(float(mean), float(sd) if sd else None)


def _row(text: str) -> Row:
    """A row of a table: one number for each method."""
    return dict(zip(METHODS, map(_number, text.split()), strict=True))


# Table 1, "Accuracy and Forgetting of EM methods with and without proposed designs". ER, iCaRL and BiC on ImageNet:
# top-5. TinyER everywhere and GDumb on ImageNet: task-incremental. ImageNet-1000 was run once.
TABLE1: dict[str, dict[str, dict[str, Row]]] = {
    "cifar": {
        "accuracy": {
            "Original": _row("33.66±0.42 47.04±0.25 54.11±2.52 48.62±0.37 47.29±0.54 72.17±1.11 52.15±1.42"),
            "CarM-50": _row("54.00±0.49 48.39±0.41 59.99±2.12 62.40±0.40 52.64±1.64 90.05±0.38 66.66±0.75"),
            "CarM-100": _row("54.93±0.46 49.48±0.53 61.83±2.50 63.07±0.48 53.72±1.06 90.58±0.30 67.81±0.51"),
        },
        "forgetting": {
            "Original": _row("57.60±0.54 22.38±0.30 16.04±2.91 20.21±0.65 22.14±0.83 24.45±1.81 23.03±2.86"),
            "CarM-50": _row("32.13±0.72 17.18±0.53 11.9±1.13 13.40±0.86 20.92±1.63 3.38±0.22 9.63±0.40"),
            "CarM-100": _row("32.28±0.55 16.73±0.65 9.44±1.96 12.16±0.69 21.18±1.49 2.78±0.55 11.03±2.28"),
        },
    },
    "imagenet": {
        "accuracy": {
            "Original": _row("65.62±1.48 79.95±1.12 56.91±2.32 83.05±0.66 42.25±0.44 19.38±1.41 21.84±0.54"),
            "CarM-50": _row("82.21±0.43 79.15±0.40 65.43±2.83 88.03±0.39 55.67±0.21 47.74±0.84 45.49±0.32"),
            "CarM-100": _row("83.56±0.36 80.15±1.07 68.70±0.59 87.63±0.34 56.11±0.47 45.12±1.39 46.70±0.16"),
        },
        "forgetting": {
            "Original": _row("55.30±0.28 17.10±0.68 15.30±2.29 15.81±0.34 11.06±0.75 66.83±0.93 16.89±0.51"),
            "CarM-50": _row("40.12±0.55 14.65±0.27 7.64±4.08 7.96±0.58 9.47±0.23 20.69±1.52 9.43±0.39"),
            "CarM-100": _row("39.25±0.29 14.28±0.20 9.76±2.48 8.27±0.28 8.01±1.84 23.81±1.68 8.81±0.21"),
        },
    },
    "imagenet-1000": {
        "accuracy": {
            "Original": _row("40.47 56.69 46.41 77.04 38.14 12.11 24.08"),
            "CarM-50": _row("42.64 55.72 48.93 80.66 48.86 35.90 43.69"),
            "CarM-100": _row("44.21 55.45 50.30 80.84 49.56 36.89 44.36"),
        },
        "forgetting": {
            "Original": _row("70.67 39.41 10.37 21.38 31.56 54.78 12.3"),
            "CarM-50": _row("65.60 40.37 8.79 18.81 25.12 24.31 7.31"),
            "CarM-100": _row("64.79 39.02 7.20 18.30 23.86 21.77 7.16"),
        },
    },
}

# "Comparison of accuracy for data swapping policies for CarM-50", ImageNet subset and (appendix) CIFAR subset.
POLICIES: dict[str, dict[str, Row]] = {
    "cifar": {
        "random": _row("54.08±0.50 48.27±0.51 59.64±1.91 62.53±0.25 52.39±1.80 89.82±0.11 66.91±0.81"),
        "entropy": _row("54.00±0.49 48.39±0.41 59.99±2.12 62.40±0.40 52.64±1.64 90.05±0.38 66.66±0.78"),
        "dynamic": _row("54.16±0.37 48.39±0.57 59.62±0.93 62.32±0.24 52.92±2.09 89.92±0.22 66.61±0.73"),
    },
    "imagenet": {
        "random": _row("82.07±0.28 79.31±0.30 65.04±2.75 87.81±0.87 55.57±0.28 47.37±0.91 45.46±0.46"),
        "entropy": _row("82.21±0.43 79.15±0.40 65.43±2.83 88.03±0.93 55.67±0.21 47.74±0.84 45.49±0.32"),
        "dynamic": _row("82.94±0.43 79.14±0.31 65.04±2.75 87.79±0.88 55.51±0.74 47.53±2.09 45.80±0.25"),
    },
}

# "Training speed with data swapping for CarM-50": percent by which training time grows.
SPEED: dict[str, dict[str, Row]] = {
    "cifar": {
        "async": _row("0.7 0.5 3.3 -0.3 3.3 0.3 2.3"),
        "sync": _row("30.2 70.5 11.3 20.0 52.1 71.6 25.9"),
    },
    "imagenet": {
        "async": _row("2.9 -2.7 5.5 1.7 0.1 2.4 -0.9"),
        "sync": _row("21.3 62.0 10.7 33.8 7.6 38.8 2.6"),
    },
}

# "Accuracy improvement of using CarM w.r.t. RM with Data Augmentation on CIFAR-10".
RM_DA: dict[str, dict[str, Number]] = {
    "accuracy": {"Original": Number(68.07, 1.57), "CarM-50": Number(84.07, 0.83), "CarM-100": Number(84.85, 0.42)},
    "forgetting": {"Original": Number(15.09, 1.72), "CarM-50": Number(5.12, 0.89), "CarM-100": Number(4.36, 0.95)},
}

# "CarM using a NVIDIA Jetson TX2": accuracy on the CIFAR subset.
JETSON: dict[str, Row] = {
    "Original": _row("33.87 46.54 55.18 49.44 47.41 71.79 51.87"),
    "CarM-50": _row("53.80 48.29 58.45 62.30 52.68 89.98 67.11"),
    "CarM-100": _row("55.38 49.11 59.79 63.21 52.91 90.28 67.24"),
}

# Not from the paper: what the methods' own papers report without swapping on Split MNIST (5 x 2 classes, one pass),
# by method and episodic memory; class-incremental.
REFERENCE: dict[tuple[str, int], Number] = {
    ("er", 200): Number(80.4, 1.9),
    ("er", 500): Number(86.1, 1.9),
    ("er", 5120): Number(93.4, 1.3),
    ("der++", 200): Number(85.6, 1.4),
    ("der++", 500): Number(91.0, 1.4),
    ("gdumb", 500): Number(91.9),
}
JOINT = Number(95.6)
"""All data at once, the same net and one pass."""
ALL_HISTORY = Number(94.7)
"""ER that may replay everything it has seen: what swapping can reach at most."""
