"""Unpacked fields as torch tensors."""

from __future__ import annotations

from typing import Any

import torch

from carm.memory.record import Schema


def to_tensors(schema: Schema, fields: Any) -> dict[str, Any]:
    """Named numpy fields (a dict, or a structured array) as tensors that share their memory; variable fields as lists
    of one-dimensional uint8 tensors."""
    out: dict[str, Any] = {}
    for f in schema.fields:
        value = fields[f.name]
        if f.shape is None:
            out[f.name] = [torch.from_numpy(v) for v in value]
        else:
            tensor = torch.from_numpy(value)
            out[f.name] = tensor.view(torch.bfloat16) if f.dtype == "bfloat16" else tensor
    return out
