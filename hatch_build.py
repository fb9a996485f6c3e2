"""Compiles src/carm/memory/native.c when the package is built or installed, if there is a C compiler.

The package works without, so nothing that goes wrong here stops an installation. CC and CFLAGS are those of the
environment; CARM_NATIVE=0 leaves it out.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/carm/memory/native.c")
LIBRARY = SOURCE.with_name("_native.so")
FLAGS = ["-O3", "-std=gnu11", "-shared", "-fPIC", "-Wall"]


def compiler() -> list[str] | None:
    """The command of the first C compiler that is there."""
    for command in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        words = shlex.split(command or "")
        if words and shutil.which(words[0]):
            return words
    return None


def compiled(root: Path) -> str:
    """Make the library anew; returns why that was not possible, or nothing."""
    library = root / LIBRARY
    if os.environ.get("CARM_NATIVE") == "0":
        return "CARM_NATIVE is 0"
    command = compiler()
    if os.name != "posix":
        return "this is no POSIX system"
    if command is None:
        return "there is no C compiler"
    unfinished = library.with_suffix(".tmp")
    flags = [*FLAGS, *shlex.split(os.environ.get("CFLAGS", ""))]
    run = subprocess.run([*command, *flags, "-o", unfinished, root / SOURCE], capture_output=True, text=True)
    if run.returncode:
        unfinished.unlink(missing_ok=True)
        library.unlink(missing_ok=True)  # one of before would be of other code
        return f"{shlex.join(command)} failed: {run.stderr.strip()}"
    unfinished.rename(library)
    return ""


class CompileNative(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        try:
            reason = compiled(Path(self.root))
        except (OSError, ValueError) as error:  # a source tree that cannot be written, a CC that is no command
            reason = str(error)
        if reason:
            print(f"carm: without compiled code, because {reason}", file=sys.stderr)
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"  # of any Python: it is called through ctypes
        build_data["artifacts"].append(str(LIBRARY))
