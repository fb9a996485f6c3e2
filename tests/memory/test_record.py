"""Records: what goes in comes out, bit for bit, and what does not fit is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from carm.memory.errors import SchemaError
from carm.memory.record import DTYPES, LARGEST, Field, Schema, as_array, in_pieces, is_bytes_list

LABEL = Field("y", "int64")


def _values(dtype: str, shape: tuple[int, ...]) -> Any:
    """Every bit pattern that is likely to break something: all bits random, so with NaN, infinities and subnormals."""
    size = int(np.prod(shape))
    raw = np.random.default_rng(len(shape)).integers(0, 256, size * 8, dtype=np.uint8)
    if dtype == "bool":
        return (raw[:size] % 2).astype(bool).reshape(shape)
    if dtype == "bfloat16":
        return torch.from_numpy(raw[: size * 2].view(np.int16).copy()).view(torch.bfloat16).reshape(shape)
    return raw[: size * np.dtype(dtype).itemsize].view(dtype).reshape(shape)


def _bits(value: Any) -> bytes:
    if isinstance(value, torch.Tensor):
        value = value.view(torch.uint16).numpy()
    return np.ascontiguousarray(value).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_every_dtype_comes_back_bit_for_bit(dtype: str, shape: tuple[int, ...]) -> None:
    x = _values(dtype, (7, *shape))
    schema = Schema.infer({"x": x, "y": np.arange(7)})
    assert schema.field("x") == Field("x", dtype, shape)
    records = schema.pack({"x": x, "y": np.arange(7)})
    assert len(records) == 7 and (records.sizes % 8 == 0).all() and (records.starts % 8 == 0).all()
    out = schema.unpack(records.data, records.starts)
    assert _bits(out["x"]) == _bits(x) and out["x"].shape == tuple(x.shape)
    assert out["y"].tolist() == list(range(7)) == records.labels.tolist()


@given(
    st.lists(
        st.tuples(st.binary(max_size=40), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=9)),
        min_size=1,
        max_size=9,
    )
)
def test_several_variable_fields(rows: list[tuple[bytes, int, bytes]]) -> None:
    schema = Schema((Field("a", "uint8", None), Field("f", "float16", (3,)), LABEL, Field("b", "uint8", None)))
    f = np.random.default_rng(0).random((len(rows), 3)).astype(np.float16)
    samples = {"a": [r[0] for r in rows], "y": [r[1] for r in rows], "b": [r[2] for r in rows], "f": f}
    records = schema.pack(samples)
    assert records.sizes.tolist() == [-(-(schema.head_size + len(a) + len(b)) // 8) * 8 for a, _, b in rows]
    order = np.arange(len(rows))[::-1]
    out = schema.unpack(records.data, records.starts[order])
    assert [bytes(v) for v in out["a"]] == [r[0] for r in rows][::-1]
    assert [bytes(v) for v in out["b"]] == [r[2] for r in rows][::-1]
    assert out["y"].tolist() == [r[1] for r in rows][::-1]
    assert (out["f"] == f[::-1]).all()


def test_bytes_of_every_kind() -> None:
    schema = Schema((Field("x", "uint8", None), LABEL))
    want = [b"", b"abc", bytes(range(9)), b"zz", b"e", b"\x00" * 3]
    given = [b"", bytearray(b"abc"), memoryview(bytes(18)[:0] + bytes(range(9))), np.frombuffer(b"z-z-", np.uint8)[::2]]
    given += [torch.tensor([101], dtype=torch.uint8), np.zeros(3, np.uint8)]
    records = schema.pack({"x": given, "y": range(6)})
    assert [bytes(v) for v in schema.unpack(records.data, records.starts)["x"]] == want
    assert [bytes(v) for v in schema.unpack(records.data, records.starts[[4, 1]])["x"]] == [b"e", b"abc"]
    backwards = memoryview(b"abc")[::-1]
    records = schema.pack({"x": [backwards], "y": [0]})
    assert bytes(schema.unpack(records.data, records.starts)["x"][0]) == b"cba"


def test_records_out_of_order_are_not_taken_for_a_block() -> None:
    schema = Schema((Field("x", "uint8", (8,)), LABEL))
    records = schema.pack({"x": np.arange(32, dtype=np.uint8).reshape(4, 8), "y": np.arange(4)})
    out = schema.unpack(records.data, records.starts[[2, 0, 3, 1]])
    assert out["y"].tolist() == [2, 0, 3, 1]


def test_padding_is_zero_so_that_equal_samples_are_equal_records() -> None:
    schema = Schema((Field("x", "uint8", (3,)), Field("f", "float64", ()), Field("b", "uint8", None), LABEL))
    samples = {"x": np.ones((2, 3), np.uint8), "f": np.ones(2), "b": [b"a", b"a"], "y": [1, 1]}
    a, b = schema.pack(samples), schema.pack(samples)
    assert a.data.tobytes() == b.data.tobytes()
    assert a.data[: a.sizes[0]].tobytes() == a.data[a.starts[1] :].tobytes()


def test_layout_is_the_documented_one() -> None:
    schema = Schema((Field("a", "uint8", (3,)), Field("f", "float32", (2,)), Field("v", "uint8", None), LABEL))
    assert [schema.head.fields[n][1] for n in ("a", "f", "v", "y")] == [0, 4, 12, 16]
    assert schema.head_size == 24
    record = schema.pack({"a": [[1, 2, 3]], "f": [[1.0, 2.0]], "v": [b"hi"], "y": [5]} | _typed()).data.tobytes()
    assert record == bytes([1, 2, 3, 0]) + np.float32([1, 2]).tobytes() + b"\x02\0\0\0" + b"\x05" + bytes(
        7
    ) + b"hi" + bytes(6)


def _typed() -> dict[str, Any]:
    return {"a": np.array([[1, 2, 3]], np.uint8), "f": np.array([[1, 2]], np.float32)}


def test_big_endian_arrays_are_stored_as_the_numbers_they_are() -> None:
    schema = Schema((Field("x", "int32", (2,)), LABEL))
    records = schema.pack({"x": np.array([[1, -2]], ">i4"), "y": np.array([7], ">i8")})
    assert schema.unpack(records.data, records.starts)["x"].tolist() == [[1, -2]]
    assert records.labels.tolist() == [7]


def test_tensors_of_all_sorts() -> None:
    x = torch.arange(24, dtype=torch.float32, requires_grad=True).reshape(4, 6)
    schema = Schema.infer({"x": x[:, ::2], "y": torch.arange(4, dtype=torch.int16)})
    records = schema.pack({"x": x[:, ::2], "y": torch.arange(4, dtype=torch.int16)})
    assert (schema.unpack(records.data, records.starts)["x"] == x.detach().numpy()[:, ::2]).all()


def test_schema_as_text() -> None:
    fields = (
        Field("x", "bfloat16", (3, 4)),
        Field("s", "bool", ()),
        Field("v", "uint8", None),
        Field("target", "int64"),
    )
    schema = Schema(fields, label="target")
    assert Schema.from_json(schema.to_json()) == schema
    assert str(schema) == "{x: bfloat16[3, 4], s: bool[], v: uint8[bytes], target: int64[]}"


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "null", '{"fields": 3, "label": "y"}', '{"fields": [{"name": "y"}], "label": "y"}'),
        '{"fields": [{"name": 5, "dtype": "int64", "shape": []}], "label": "y"}',
        '{"fields": [{"name": "y", "dtype": "int64", "shape": ["a"]}], "label": "y"}',
        '{"fields": [{"name": "y", "dtype": "object", "shape": []}], "label": "y"}',
        '{"fields": [{"name": "y", "dtype": "int64", "shape": 3}], "label": "y"}',
    ],
)
def test_text_that_is_no_schema(text: str) -> None:
    with pytest.raises(SchemaError):
        Schema.from_json(text)


@pytest.mark.parametrize(
    "field",
    [
        ("a b", "uint8", ()),
        ("", "uint8", ()),
        (5, "uint8", ()),
        ("x", "float128", ()),
        ("x", "object", ()),
        ("x", "U3", ()),
        ("x", "float32", None),
        ("x", "uint8", (0,)),
        ("x", "uint8", (-1,)),
        ("x", "uint8", (2.5,)),
        ("x", "uint8", 3),
        ("x", "uint8", (True,)),
        ("x", "uint8", (2**40, 2**40)),
        ("x", "uint8", (2**32, 2**32)),
        ("x", "int64", (2**28,)),
    ],
)
def test_what_is_no_field(field: tuple[Any, ...]) -> None:
    with pytest.raises(SchemaError, match=r"field"):
        Field(*field)


def test_a_shape_may_be_a_list() -> None:
    assert Field("x", "uint8", [3, 4]) == Field("x", "uint8", (3, 4))  # type: ignore[arg-type]
    assert hash(Field("x", "uint8", [3, 4])) == hash(Field("x", "uint8", (3, 4)))  # type: ignore[arg-type]


def test_what_is_no_schema() -> None:
    with pytest.raises(SchemaError, match="distinct"):
        Schema((LABEL, Field("x"), Field("x")))
    for fields in ((), (Field("x"),), (Field("y", "int32"),), (Field("y", "int64", (2,)),)):
        with pytest.raises(SchemaError, match="label field 'y'"):
            Schema(fields)
    half = Field("a", "uint8", (2**30,))
    with pytest.raises(SchemaError, match=str(LARGEST)):  # each is allowed; together they would not fit 32 bits
        Schema((half, Field("b", "uint8", (2**30,)), LABEL))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((2, 3), np.float32)}, r"'x' holds uint8\[3\] per sample; got float32\[3\]"),
        (
            {"x": np.zeros((2, 4), np.uint8)},
            r"'x' holds uint8\[3\] per sample; got uint8\[4\]\. Convert .* another storage dir",
        ),
        ({"x": np.zeros((3, 3), np.uint8)}, "'y' has 2 samples, but 'x' has 3"),
        ({"x": np.uint8(3)}, "'x' needs one row per sample"),
        ({"x": [[1, 2], [3]]}, "'x' cannot be made an array"),
        ({"x": ["a", "b"]}, "'x' has dtype <U1"),
        ({"x": np.array([None, {}])}, "'x' has dtype object"),
        ({"x": torch.zeros(2, 3).to(torch.float8_e4m3fn)}, "'x' cannot be made an array"),
        ({"y": [0.0, 1.0]}, "'y' must hold whole numbers; got dtype float64"),
        ({"y": [True, False]}, "'y' must hold whole numbers; got dtype bool"),
        ({"y": [None, 1]}, "'y' has dtype object"),
        ({"y": ["cat", "dog"]}, "'y' has dtype <U3"),
        ({"y": np.zeros((2, 2), np.int64)}, r"'y' must have one number per sample; got shape \(2, 2\)"),
        ({"y": np.array([1, 2**63], np.uint64)}, "9223372036854775808"),
        ({"y": [1, 2**70]}, "'y'"),
        ({"b": "ab"}, "'b' holds bytes of any length"),
        ({"b": [b"a", "b"]}, "'b' holds bytes of any length"),
        ({"b": np.zeros((2, 3), np.uint8)}, "'b' holds bytes of any length"),
        ({"b": [b"a"]}, "'b' has 1 samples"),
        ({"q": 1}, r"missing: none, unknown: \['q'\]"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    schema = Schema((Field("x", "uint8", (3,)), LABEL, Field("b", "uint8", None)))
    good = {"x": np.zeros((2, 3), np.uint8), "y": [1, 2], "b": [b"", b"1"]}
    assert len(schema.pack(good)) == 2
    with pytest.raises(SchemaError, match=message):
        schema.pack(good | change)
    with pytest.raises(SchemaError, match=r"missing: \['x'\]"):
        schema.pack({"y": [1], "b": [b""]})


def test_empty_batches() -> None:
    schema = Schema((Field("x", "uint8", (3,)), LABEL))
    records = schema.pack({"x": np.zeros((0, 3), np.uint8), "y": []})
    assert len(records) == 0 and len(schema.unpack(records.data, records.starts)["x"]) == 0
    schema = Schema((Field("x", "uint8", None), LABEL))
    records = schema.pack({"x": [], "y": np.zeros(0, np.int64)})
    assert len(records) == 0 and schema.unpack(records.data, records.starts)["x"] == []


def test_what_is_taken_for_bytes() -> None:
    assert is_bytes_list([b"a", bytearray(b""), np.zeros(3, np.uint8)])
    for value in (
        b"ab",
        "ab",
        [],
        [1, 2],
        np.zeros((2, 2), np.uint8),
        [np.zeros(3)],
        [np.zeros((1, 1), np.uint8)],
        None,
    ):
        assert not is_bytes_list(value)
    assert as_array("x", (1, 2)).tolist() == [1, 2]


# -- in pieces ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120), st.one_of(st.none(), st.integers(1, 9)))
def test_pieces_are_as_large_as_they_may_be(sizes: list[int], most: int, count: int | None) -> None:
    parts = list(in_pieces(np.array(sizes, np.int32), most, count))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(len(sizes)))
    for part in parts:
        here = sizes[part]
        assert len(here) == 1 or sum(here) <= most
        assert len(here) <= (count or len(here))
        more = sizes[part.start : part.stop + 1]
        assert len(more) == len(here) or sum(more) > most or len(here) == count, "one more would have fitted"
