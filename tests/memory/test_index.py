"""The index of the storage tier, against a dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from carm.memory.catalogue import ENTRY, Entries
from carm.memory.index import Index


def entries(first: int, labels: list[int], size: int = 700) -> Entries:
    out = np.zeros(len(labels), ENTRY)
    out["id"] = np.arange(first, first + len(labels))
    out["offset"] = out["id"] * 1024
    out["size"], out["label"], out["checksum"] = size, labels, out["id"] + 7
    return out


@given(st.lists(st.tuples(st.lists(st.integers(-2, 3), max_size=40), st.integers(0, 30)), max_size=8))
def test_samples_come_and_go(rounds: list[tuple[list[int], int]]) -> None:
    index = Index(entries(0, []))
    model: dict[int, tuple[int, int]] = {}  # handle and label by id
    first = 0
    for labels, gone in rounds:
        handles = index.enter(entries(first, labels))
        taken = {handle for handle, _ in model.values()}
        assert len(set(handles.tolist())) == len(labels) and not taken & set(handles.tolist())
        model |= {first + i: (int(h), labels[i]) for i, h in enumerate(handles)}
        first += len(labels)
        dropped = sorted(model)[::2][:gone]
        index.drop([model.pop(i)[0] for i in dropped])
        assert len(index) == len(model) and index.live_bytes == 1024 * len(model)
        assert index.ids[index.live()].tolist() == sorted(model)
        assert index.find(sorted(model)).tolist() == [model[i][0] for i in sorted(model)]
        assert index.find([*dropped, first, -1]).tolist() == [-1] * (len(dropped) + 2)
        for i, (handle, label) in model.items():
            assert index.sets.label(handle) == label and index.sets.is_open(handle) and index.sums[handle] == i + 7
            assert [int(part[0]) for part in index.where([handle])] == [i * 1024, 700]


def test_a_handle_is_used_again_so_the_index_does_not_grow_with_what_was_evicted() -> None:
    index = Index(entries(0, [0] * 1000))
    before = index.nbytes
    for first in range(1000, 20_000, 1000):
        index.drop(index.live()[:500].tolist())
        index.enter(entries(first, [0] * 500))
    assert len(index) == 1000 and index.nbytes <= 2 * before


def test_opened_again_it_is_as_if_it_had_never_been_closed() -> None:
    born = entries(0, [5, -1, 5, 2, -1])
    grown, opened = Index(born[:0]), Index(born)
    grown.enter(born)
    assert opened.sets.labels == grown.sets.labels == [5, -1, 2]
    for label in opened.sets.labels:
        assert opened.sets.members(label).tolist() == grown.sets.members(label).tolist()


def test_it_tells_which_samples_another_list_has_as_they_are_here() -> None:
    index = Index(entries(0, [0] * 6))
    now = entries(0, [0] * 6)
    now["checksum"][1] += 1  # an id that was given to another sample
    now["offset"][2] += 512
    now = now[[5, 0, 1, 2, 3]]
    assert index.same(np.arange(6), now).tolist() == [True, False, False, True, False, True]
    assert not index.same(np.arange(6), now[:0]).any()
