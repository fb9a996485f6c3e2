"""The continual-learning methods, one file each: what is particular to a method, and nothing else."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
import types
import typing
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Union

from carm.methods.base import Method
from carm.methods.bic import BiC
from carm.methods.derpp import DERpp
from carm.methods.er import ER
from carm.methods.gdumb import GDumb
from carm.methods.icarl import ICaRL
from carm.methods.rm import RM
from carm.methods.tiny_er import TinyER
from carm.methods.training import Training

__all__ = ["ER", "RM", "BiC", "DERpp", "GDumb", "ICaRL", "Method", "TinyER", "Training", "find", "make", "names"]

_METHODS: dict[str, type[Method]] = {m.name: m for m in (ER, ICaRL, TinyER, BiC, GDumb, DERpp, RM)}
TITLES = {
    "er": "ER",
    "icarl": "iCaRL",
    "tiny-er": "TinyER",
    "bic": "BiC",
    "gdumb": "GDumb",
    "der++": "DER++",
    "rm": "RM",
}
"""The names as the papers write them."""


def names() -> tuple[str, ...]:
    """The methods that `make` knows, in the paper's order."""
    return tuple(_METHODS)


def canonical(name: str) -> str:
    """A method's name as `names` spells it; "FILE.py:Class", a method of your own, stays as it is."""
    if ":" in name:
        return name
    known = {_key(one): one for one in _METHODS} | {"derpp": "der++"}
    if _key(name) in known:
        return known[_key(name)]
    near = get_close_matches(_key(name), known, 1, 0.4)
    hint = f" Did you mean {known[near[0]]!r}?" if near else ""
    raise ValueError(
        f"there is no method {name!r}.{hint} The methods are: {', '.join(_METHODS)}; or FILE.py:Class for your own"
    )


def _key(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum() or c == "+")


def find(name: str) -> type[Method]:
    """The class of a method."""
    name = canonical(name)
    return _METHODS[name] if name in _METHODS else _from_file(*name.rsplit(":", 1))


def _from_file(file: str, cls: str) -> type[Method]:
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"method={file}:{cls}: there is no file {file}")
    found = getattr(_module(path.resolve(), path.stat().st_mtime_ns), cls, None)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ValueError(f"method={file}:{cls}: {file} has no class {cls} that derives from carm.methods.Method")
    return found


@functools.cache
def _module(path: Path, changed: int) -> types.ModuleType:
    """A file as a module, carried out once for each time it was `changed`. Python has to find it by its name: a
    dataclass looks up its annotations there."""
    name = f"carm_method_{hashlib.sha256(f'{path}:{changed}'.encode()).hexdigest()[:8]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"method={path}: this is no Python file; its name must end in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def make(name: str, **options: Any) -> Method:
    """A method by name, with its options; an error names the option that does not exist or cannot have its value."""
    cls = find(name)
    allowed = cls.options()
    hints = typing.get_type_hints(cls.__init__) if allowed else {}
    for option, value in options.items():
        if option not in allowed:
            raise ValueError(f"{name} has no option {option!r}; its options are: {', '.join(allowed) or 'none'}")
        if not fits(value, hints.get(option, Any)):
            raise ValueError(f"{option}={value!r}: {name} takes {describe(hints[option])} here")
    return cls(**options)


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of the kind that an annotation names: int, float, bool, str, Literal or a union of these."""
    if typing.get_origin(kind) is Literal:
        return any(value == one and type(value) is type(one) for one in typing.get_args(kind))
    if typing.get_origin(kind) in (Union, types.UnionType):
        return any(fits(value, one) for one in typing.get_args(kind))
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind) if kind in (bool, str) else True


def describe(kind: Any) -> str:
    """The values that an annotation allows, in words."""
    if typing.get_origin(kind) is Literal:
        return " or ".join(repr(one) for one in typing.get_args(kind))
    if typing.get_origin(kind) in (Union, types.UnionType):
        return " or ".join(describe(one) for one in typing.get_args(kind))
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
    return words.get(kind, str(kind))
