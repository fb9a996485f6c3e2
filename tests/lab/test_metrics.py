"""Accuracy and forgetting, against a matrix worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from carm.lab.metrics import Counts, History, forgetting, mean_over_classes, own_classes

TASKS: list[tuple[int, ...]] = [(0, 1), (2, 3), (4, 5)]


def scores(predictions: list[int], columns: int) -> torch.Tensor:
    """Outputs whose order is: the prediction first, then the classes from the last down."""
    out = torch.arange(columns, dtype=torch.float32).repeat(len(predictions), 1)
    out[range(len(predictions)), predictions] = 100.0
    return out


def counted(y: list[int], predictions: list[int], seen: int, tasks: list[tuple[int, ...]], classes: int = 6) -> Counts:
    counts = Counts(classes)
    counts.add(scores(predictions, seen), torch.tensor(y), own_classes(np.array(y), tasks, seen))
    return counts


def test_accuracy_is_the_mean_over_classes_not_over_samples() -> None:
    y = [0] * 8 + [1] * 2
    counts = counted(y, [0] * 8 + [0, 1], 2, TASKS[:1])
    assert counts.per_class("ci")[:2].tolist() == [100, 50]
    assert mean_over_classes(counts.per_class("ci"), range(2)) == 75  # and not 90
    assert np.isnan(counts.per_class("ci")[2:]).all()


def test_counts_add_up() -> None:
    counts = Counts(6)
    y, predictions = [0, 1, 2, 3, 0, 1], [0, 0, 2, 2, 1, 1]
    for at in range(0, 6, 2):
        part = torch.tensor(y[at : at + 2])
        own = own_classes(part.numpy(), TASKS[:2], 4)
        counts.add(scores(predictions[at : at + 2], 4), part, own)
    assert counts.total.tolist() == [2, 2, 1, 1, 0, 0]
    assert counts.per_class("ci")[:4].tolist() == [50, 50, 100, 0]


def test_task_incremental_has_only_the_tasks_classes_as_candidates() -> None:
    # Class 3 is taken for 0 in CI. Among 2 and 3 the outputs favour 3, so in TI it is right; class 2 is wrong in both.
    counts = counted([3, 2], [0, 0], 4, TASKS[:2])
    assert counts.per_class("ci")[2:4].tolist() == [0, 0]
    assert counts.per_class("ti")[2:4].tolist() == [0, 100]


def test_top_5_counts_the_five_best() -> None:
    # The prediction, then 9, 8, 7, 6: 6 is among the five best, 5 is not.
    y = [6, 5, 2]
    counts = Counts(10)
    counts.add(scores([0, 0, 2], 10), torch.tensor(y), own_classes(np.array(y), [tuple(range(10))], 10))
    assert counts.per_class("ci5")[[6, 5, 2]].tolist() == [100, 0, 100]
    few = counted([0, 1], [1, 0], 2, TASKS[:1])  # fewer than five classes: always right
    assert few.per_class("ci5")[:2].tolist() == [100, 100]
    assert few.per_class("ci")[:2].tolist() == [0, 0]


def test_a_class_that_cannot_be_the_answer_is_never_right() -> None:
    """Where all candidates are equally impossible, the first of them is the largest all the same."""
    y = torch.arange(4)
    outputs = torch.tensor([[-math.inf, -math.inf, 1.0, 2.0]]).repeat(4, 1)
    counts = Counts(4)
    counts.add(outputs, y, own_classes(y.numpy(), TASKS[:2], 4))
    assert counts.per_class("ci").tolist() == [0, 0, 0, 100]
    assert counts.per_class("ti").tolist() == [0, 0, 0, 100]
    assert counts.per_class("ci5").tolist() == [0, 0, 100, 100]
    counts = Counts(4)
    counts.add(torch.full((4, 4), -math.inf), y, own_classes(y.numpy(), TASKS[:2], 4))
    assert counts.per_class("ci").tolist() == [0, 0, 0, 0]


def test_forgetting_is_from_the_best_to_the_last() -> None:
    matrix = [[90.0], [60.0, 80.0], [70.0, 85.0, 95.0], [40.0, 65.0, 90.0, 99.0]]
    # Task 0: 90 -> 40, task 1: best 85 -> 65, task 2: 95 -> 90; the last has no earlier point.
    assert forgetting(matrix) == pytest.approx((50 + 20 + 5) / 3)
    assert forgetting([[50.0], [60.0, 10.0]]) == -10  # it may get better
    assert forgetting([[50.0]]) == 0
    assert forgetting([[math.nan], [math.nan, 80.0], [math.nan, 60.0, 10.0]]) == 20
    assert forgetting([[math.nan], [math.nan, 80.0]]) == 0


def test_the_history_of_a_run_by_hand() -> None:
    history = History()
    # After task 0: class 0 all right, class 1 half.
    history.add(counted([0, 0, 1, 1], [0, 0, 1, 0], 2, TASKS[:1]), TASKS[:1], 2)
    # After task 1: 0 half, 1 none, 2 all, 3 all.
    y = [0, 0, 1, 1, 2, 2, 3, 3]
    history.add(counted(y, [0, 2, 2, 3, 2, 2, 3, 3], 4, TASKS[:2]), TASKS[:2], 4)
    # After task 2: class 5 has no test samples.
    y = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    history.add(counted(y, [0, 0, 4, 4, 2, 4, 4, 4, 4, 4], 6, TASKS), TASKS, 6)
    assert history.matrix["ci"] == [[75], [25, 100], [50, 25, 100]]
    assert history.incremental["ci"] == [75, 62.5, (100 + 0 + 50 + 0 + 100) / 5]
    assert history.by_class[1] == [50, 0, 100, 100]
    assert history.by_class[2][:5] == [100, 0, 50, 0, 100] and math.isnan(history.by_class[2][5])
    final = history.final()
    assert final["ci"]["accuracy"] == 50
    assert final["ci"]["forgetting"] == pytest.approx(((75 - 50) + (100 - 25)) / 2)
    assert final["ci"]["average"] == pytest.approx((75 + 62.5 + 50) / 3)
    # In TI, what was taken for another task's class goes to the task's later class.
    assert history.matrix["ti"][1] == [(50 + 100) / 2, 100]
    assert final["ti"]["accuracy"] == pytest.approx((100 + 100 + 50 + 100 + 100) / 5)
    assert final["top5"] == pytest.approx(100 * np.mean([1, 1, 1, 1, 1]))


def test_a_history_comes_back_from_its_record() -> None:
    history, again = History(), History()
    history.add(counted([0, 1], [0, 0], 2, TASKS[:1]), TASKS[:1], 2)
    again.load(history.as_dict())
    assert again.final() == history.final()


def test_a_task_without_test_samples_counts_for_nothing() -> None:
    history = History()
    history.add(Counts(6), TASKS[:1], 2)
    history.add(counted([2, 3], [2, 2], 4, TASKS[:2]), TASKS[:2], 4)
    final: dict[str, Any] = history.final()
    assert final["ci"]["accuracy"] == 50
    assert final["ci"]["average"] == 50
    assert final["ci"]["forgetting"] == 0


def test_own_classes_of_tasks_that_share_a_class() -> None:
    table = own_classes(np.array([0, 1, 2]), [(0, 1), (1, 2)], 4)
    assert table.tolist() == [
        [True, True, False, False],
        [True, True, True, False],
        [False, True, True, False],
    ]
