"""The command `carm`."""

from __future__ import annotations

import csv
import itertools
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carm import cli
from carm.cli import store as store_commands
from carm.memory import aio, index
from carm.memory.store import Store
from carm.memory.units import format_bytes

JPEG = b"\xff\xd8\xff\xe0 not really"
PNG = b"\x89PNG\r\n\x1a\n not really"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def fixed(tmp_path: Path) -> Path:
    """A store of 100 samples of 4 classes, all records of one size."""
    directory = tmp_path / "fixed"
    with Store(directory) as store:
        store.append(
            {
                "x": np.arange(100 * 6, dtype=np.float32).reshape(100, 2, 3),
                "y": np.arange(100) % 4,
                "weight": np.linspace(0, 1, 100),
            }
        )
    return directory


@pytest.fixture
def variable(tmp_path: Path) -> Path:
    """A store of encoded samples."""
    directory = tmp_path / "variable"
    with Store(directory) as store:
        store.append({"x": [JPEG, PNG, b"", b"z" * 3000], "y": [7, 7, -1, 7], "extra": np.ones((4, 2), np.int16)})
    return directory


def damage(directory: Path, number: int) -> None:
    """Flip a bit of the sample with this id."""
    with Store(directory, readonly=True) as store:
        offset = int(store.index.offsets[store.index.find([number])[0]])
    with open(directory / "extents.dat", "r+b") as file:
        file.seek(offset + 3)
        byte = file.read(1)[0]
        file.seek(offset + 3)
        file.write(bytes([byte ^ 1]))


def run(*arguments: Any) -> int:
    return cli.main([str(a) for a in arguments])


# -- help --------------------------------------------------------------------------------------------------------------

COMMANDS = [
    "",
    "store",
    "store info",
    "store verify",
    "store export",
    "demo",
    "bench",
    "bench memory",
    "compare",
    "report",
    "paper",
]


def test_help_teaches_and_loads_nothing_heavy() -> None:
    code = f"""
import contextlib, io, sys
from carm.cli import main
for command in {COMMANDS!r}:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    assert "examples:" in out.getvalue(), command
    assert "carm " + command in out.getvalue(), command
heavy = {{"torch", "numpy", "sklearn", "rich", "sqlite3"}} & sys.modules.keys()
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_store_commands_do_not_load_torch(fixed: Path) -> None:
    code = f"""
import sys
from carm.cli import main
assert main(["store", "info", {str(fixed)!r}]) == 0
assert main(["store", "verify", {str(fixed)!r}]) == 0
assert main(["store", "export", {str(fixed)!r}, {str(fixed.parent / "out.npz")!r}]) == 0
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_in_the_help_are_valid(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(*command.split(), "--help")
    text = capsys.readouterr().out
    lines = re.findall(r"^  carm (.*)$", text.partition("examples:")[2], re.M)
    assert lines
    for line in lines:
        words = re.split(r"  +| [>|]", line)[0].split()  # without the remark, or what the shell does with it
        assert callable(cli._parser().parse_args(words).run)


@pytest.mark.parametrize("command", ["", "store", "bench"])
def test_a_group_without_a_command_shows_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*command.split()) == 2
    assert "COMMAND" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import carm

    with pytest.raises(SystemExit) as ended:
        run("--version")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"carm {carm.__version__}\n"


# -- errors ------------------------------------------------------------------------------------------------------------


def test_errors_are_one_sentence(tmp_path: Path, fixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "catalogue.db").write_bytes(b"not a database" * 100)
    for arguments, words in (
        (["store", "info", tmp_path / "nowhere"], "nowhere: there is no such directory; give the directory"),
        (["store", "verify", tmp_path / "empty"], "catalogue.db in it; give the directory"),
        (["store", "info", tmp_path / "broken"], "cannot be read as a catalogue"),
        (["store", "export", fixed, tmp_path / "out.npz", "--class", 9], "no samples of class 9"),
        (["store", "export", fixed, tmp_path / "out.npz", "--limit", 0], "--limit 0"),
        (["store", "export", fixed, fixed], "exists already"),
        (["store", "export", fixed, tmp_path / "no" / "folder" / "out.npz"], "/no: No such file or directory"),
        (["demo", "--seeds", 0], "seeds=0"),
    ):
        assert run(*arguments) == 2, arguments
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("carm: ") and err.count("\n") == 1, err
        assert words in err


def test_debug_shows_the_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--debug", "store", "info"], ["store", "--debug", "info"], ["store", "info", "--debug"]):
        assert run(*arguments, tmp_path / "nowhere") == 2
        assert "Traceback" in capsys.readouterr().err


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("carm.demo.configurations", interrupt)
    assert run("demo") == 130
    assert capsys.readouterr().err == "carm: interrupted\n"


# -- info --------------------------------------------------------------------------------------------------------------


def facts(text: str) -> dict[str, str]:
    return dict(re.split(r"  +", line, maxsplit=1) for line in map(str.strip, text.splitlines()) if "  " in line)


def test_info(fixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("store", "info", fixed) == 0
    shown = facts(capsys.readouterr().out)
    assert shown["fields"] == "x: float32[2, 3], y: int64[], weight: float64[]"
    assert shown["label"] == "y"
    assert shown["samples"] == "100 in 4 classes"
    assert shown["their bytes"].startswith(format_bytes(50 << 10))
    assert shown["free inside"].startswith("0 B in holes")
    assert shown["last commit"] == "2"
    assert shown["checkpoints"] == "none that can be restored"
    assert shown["dead entries"].startswith("0 ")
    assert shown["engine"].split()[0] in ("aio", "mapped", "preadv")
    assert [shown[str(c)].split() for c in range(4)] == [["25", "25.0%"]] * 4


def test_info_after_deletions(fixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(fixed) as store:
        store.delete(range(10, 20))
        store.checkpoint()
        store.delete(range(20, 22))
    assert run("store", "info", fixed) == 0
    shown = facts(capsys.readouterr().out)
    assert shown["samples"] == "88 in 4 classes"
    assert re.fullmatch(rf"at commit \d+, {format_bytes(1 << 10)} evicted since is kept", shown["checkpoints"])
    assert shown["free inside"].startswith(f"{format_bytes(5 << 10)} in holes")
    assert shown["dead entries"].startswith("10 ")


def test_info_lists_many_classes_only_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(tmp_path / "s") as store:
        store.append({"x": np.zeros((100, 1), np.uint8), "y": np.arange(100)})
    assert run("store", "info", tmp_path / "s") == 0
    assert re.search(r"\.\.\. +60 more +--all", capsys.readouterr().out)
    assert run("store", "info", tmp_path / "s", "--all") == 0
    assert "99" in facts(capsys.readouterr().out)


def test_a_store_without_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(tmp_path / "new").close()
    assert run("store", "info", tmp_path / "new") == 0
    assert "nothing has been put in" in capsys.readouterr().out
    assert run("store", "verify", tmp_path / "new") == 0
    assert run("store", "export", tmp_path / "new", tmp_path / "out.npz") == 2
    with Store(tmp_path / "emptied") as store:
        store.delete(store.append({"x": np.zeros((3, 1), np.uint8), "y": np.arange(3)}))
    assert run("store", "info", tmp_path / "emptied") == 0
    assert run("store", "verify", tmp_path / "emptied") == 0
    assert run("store", "export", tmp_path / "emptied", tmp_path / "out.npz") == 0
    assert np.load(tmp_path / "out.npz")["x"].shape == (0, 1)


def test_while_another_process_writes(fixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = f"""
import sys
import numpy as np
from carm.memory.store import Store
store = Store({str(fixed)!r}, capacity=150)
print("open", flush=True)
while True:
    store.append({{"x": np.zeros((20, 2, 3), np.float32), "y": np.arange(20) % 4, "weight": np.zeros(20)}})
"""
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None and writer.stdout.readline() == b"open\n"
        for i in range(5):
            assert run("store", "info", fixed) == 0
            assert run("store", "verify", fixed) == 0, capsys.readouterr()
            assert run("store", "export", fixed, fixed.parent / f"{i}.npz") == 0
            with np.load(fixed.parent / f"{i}.npz") as exported:
                assert len(exported["x"]) == len(exported["sample.ids"]) <= 150
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()


# -- verify ------------------------------------------------------------------------------------------------------------


def test_verify(fixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("store", "verify", fixed) == 0
    assert capsys.readouterr().out == "100 samples, all whole\n"
    damage(fixed, 17)
    damage(fixed, 3)
    assert run("store", "verify", fixed) == 1
    assert capsys.readouterr().out == "100 samples, 2 damaged:\n3\n17\n"


@pytest.mark.parametrize("works", ["aio", "preadv"])
def test_verify_never_reads_through_a_mapping(fixed: Path, monkeypatch: pytest.MonkeyPatch, works: str) -> None:
    def refuse(path: Path) -> None:
        raise OSError(38, "Function not implemented", str(path))

    for name in {"aio", "mapped", "preadv"} - {works}:
        monkeypatch.setitem(aio.ENGINES, name, refuse)
    if works == "aio":
        monkeypatch.delitem(aio.ENGINES, "preadv")
        try:
            aio.AioEngine(fixed / "extents.dat").close()
        except OSError:
            pytest.skip("no Linux AIO here")
    assert run("store", "verify", fixed) == 0
    damage(fixed, 5)
    assert run("store", "verify", fixed) == 1


def test_verify_changes_nothing(fixed: Path) -> None:
    damage(fixed, 3)
    before = {p.name: p.read_bytes() for p in fixed.iterdir() if p.suffix in (".db", ".dat")}
    assert run("store", "verify", fixed) == 1
    assert before == {p.name: p.read_bytes() for p in fixed.iterdir() if p.suffix in (".db", ".dat")}


def test_verify_names_what_the_file_is_too_short_for(fixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(fixed / "extents.dat", "r+b") as file:
        file.truncate(97 * 512)
    assert run("store", "verify", fixed) == 1
    out, err = capsys.readouterr()
    assert out == "100 samples, 3 damaged:\n97\n98\n99\n"
    assert err == ""
    assert run("store", "info", fixed) == 0
    assert "ends before 3 of the samples" in capsys.readouterr().err
    (fixed / "extents.dat").unlink()
    assert run("store", "verify", fixed) == 2
    assert "extents.dat is missing" in capsys.readouterr().err


def test_samples_that_were_evicted_meanwhile_are_not_damaged(fixed: Path) -> None:
    damage(fixed, 3)
    damage(fixed, 4)
    with Store(fixed) as store:
        store.delete([4])
    assert store_commands._still_there(fixed, [3, 4, 5, 1000]) == [3]


# -- export ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 1000, 8 << 20])
def test_export_npz(fixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(index, "_PIECE", chunk)
    assert run("store", "export", fixed, tmp_path / "out.npz") == 0
    with np.load(tmp_path / "out.npz", allow_pickle=False) as out, Store(fixed, readonly=True) as store:
        assert set(out) == {"x", "y", "weight", "sample.ids", "sample.schema"}
        assert out["sample.ids"].tolist() == list(range(100))
        assert str(out["sample.schema"]) == store.schema.to_json()  # type: ignore[union-attr]
        for name, value in store.read(range(100)).items():
            assert out[name].dtype == value.dtype
            assert np.array_equal(out[name], value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fixed", "out.npz"]  # no temporary files are left


def test_export_npz_of_variable_fields(variable: Path, tmp_path: Path) -> None:
    assert run("store", "export", variable, tmp_path / "out.npz") == 0
    with np.load(tmp_path / "out.npz", allow_pickle=False) as out:
        data, offsets = out["x"], out["x.offsets"]
        assert [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)] == [
            JPEG,
            PNG,
            b"",
            b"z" * 3000,
        ]
        assert out["extra"].tolist() == [[1, 1]] * 4
        assert out["y"].tolist() == [7, 7, -1, 7]


def test_export_chooses(fixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("store", "export", fixed, tmp_path / "a.npz", "--class", 1, 3, "--limit", 5) == 0
    assert np.load(tmp_path / "a.npz")["sample.ids"].tolist() == [1, 3, 5, 7, 9]
    assert capsys.readouterr().out.startswith("5 samples in ")


def test_export_of_bfloat16(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([[1.5, -2.0], [1e30, float("nan")]], dtype=torch.bfloat16)
    with Store(tmp_path / "s") as store:
        store.append({"x": values, "y": [0, 1]})
    assert run("store", "export", tmp_path / "s", tmp_path / "out.npz") == 0
    out = np.load(tmp_path / "out.npz")["x"]
    assert out.dtype == np.float32
    assert np.array_equal(out, values.float().numpy(), equal_nan=True)


def test_export_leaves_out_what_is_damaged(fixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(fixed, 3)
    assert run("store", "export", fixed, tmp_path / "out.npz") == 1
    assert capsys.readouterr().err == "carm: left out, because they are damaged: 3\n"
    assert np.load(tmp_path / "out.npz")["sample.ids"].tolist() == [0, 1, 2, *range(4, 100)]


def test_export_names_what_the_file_is_too_short_for(
    fixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(fixed / "extents.dat", "r+b") as file:
        file.truncate(95 * 512)
    assert cli.main(["store", "export", str(fixed), str(tmp_path / "a.npz")]) == 1
    out = capsys.readouterr()
    assert "95 samples in" in out.out and "left out, because they are damaged: 95 96 97 98 99" in out.err
    assert cli.main(["store", "export", str(fixed), str(tmp_path / "b.npz"), "--class", "3"]) == 1
    assert "left out, because they are damaged: 95 99" in capsys.readouterr().err
    assert cli.main(["store", "export", str(fixed), str(tmp_path / "c.npz"), "--limit", "10"]) == 0
    with open(fixed / "extents.dat", "r+b") as file:
        file.truncate(0)
    assert cli.main(["store", "export", str(fixed), str(tmp_path / "d.npz"), "--class", "2"]) == 1
    out = capsys.readouterr()
    assert "0 samples in" in out.out and "left out" in out.err


@pytest.mark.parametrize("form", ["npz", "files"])
@pytest.mark.parametrize("interrupt", [False, True])
def test_an_export_that_fails_leaves_nothing_behind(
    fixed: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    interrupt: bool,
) -> None:
    """Under a limit on the size of files, and after Ctrl-C."""
    out = tmp_path / "exports" / "out"
    out.parent.mkdir()
    code = f"import sys; from carm import cli; sys.exit(cli.main({['store', 'export', str(fixed), str(out)]!r}"
    code += f" + ['--format', {form!r}]))"
    if interrupt:
        code = (
            "from carm.cli import store\ndef stop(*_): raise KeyboardInterrupt\n"
            f"store._Npz.write = store._Files._cell = stop\n{code}"
        )
    else:
        code = f"import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n{code}".replace(
            "sys.exit", "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); sys.exit"
        )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == (130 if interrupt else 2), done.stderr
    if not interrupt:
        assert done.stderr == f"carm: {out}: File too large\n"
    assert not list(out.parent.iterdir())


def test_export_files(variable: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("store", "export", variable, out, "--format", "files") == 0
    with open(out / "index.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["id"], r["y"]) for r in rows] == [("0", "7"), ("1", "7"), ("2", "-1"), ("3", "7")]
    assert [r["x"] for r in rows] == ["7/00000000.x.jpg", "7/00000001.x.png", "-1/00000002.x.bin", "7/00000003.x.bin"]
    assert [(out / r["x"]).read_bytes() for r in rows] == [JPEG, PNG, b"", b"z" * 3000]
    assert all(np.load(out / r["extra"]).tolist() == [1, 1] for r in rows)
    assert len(list(out.rglob("*.*"))) == 9


def test_export_files_puts_single_numbers_in_the_index(fixed: Path, tmp_path: Path) -> None:
    assert run("store", "export", fixed, tmp_path / "out", "--format", "files", "--class", 2) == 0
    with open(tmp_path / "out" / "index.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 25
    assert float(rows[3]["weight"]) == np.linspace(0, 1, 100)[14]
    assert np.load(tmp_path / "out" / rows[3]["x"]).tolist() == [[84, 85, 86], [87, 88, 89]]


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_bench_gets_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    bench = types.ModuleType("carm.bench.memory")
    bench.main = lambda **options: calls.append(options) or 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "carm.bench.memory", bench)
    assert run("bench", "memory", "--quick", "--json", "out.json", "--only", "draw", "swap") == 1
    assert run("bench", "memory", "--directory", "/mnt") == 1
    assert calls == [
        {"json_path": Path("out.json"), "quick": True, "only": ["draw", "swap"]},
        {"json_path": None, "quick": False, "only": None, "directory": Path("/mnt")},
    ]
