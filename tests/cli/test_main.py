"""The command line: help, one line on stderr for every mistake, and exit statuses."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import dasp
from dasp.cli import main as cli
from dasp.cli.options import COMMANDS
from dasp.dense.gemm import rungs_cuda
from dasp.models import families
from tests.support.command import CPU, error, run


def test_config_and_help_print(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "config")
    assert (status, err) == (0, "")
    assert dasp.__version__ in out
    status, out, err = run(capsys, "--help")
    assert (status, err) == (0, "")
    for usage, summary in families().items():
        assert usage in out
        assert summary in out
    assert str(dasp.__doc__).splitlines()[0] in out
    assert "matrix.py asks" not in out  # the package's docstring goes on; its help does not
    for command in (
        "info",
        "solve",
        "config",
        "bench",
        "partition",
        "tune",
    ):
        assert re.search(f"^    {command}( |$)", out, flags=re.MULTILINE)
        status, shown, _ = run(capsys, *command.split(), "--help")
        assert status == 0
        assert shown.startswith(f"usage: dasp {command} ")
    assert run(capsys, "--version")[:2] == (0, f"dasp {dasp.__version__}\n")


def test_a_user_without_a_home_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CACHE_HOME", "DASP_COST_MODEL", "DASP_TUNED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", find_home)
    status, out, _ = run(capsys, "config")
    told = "no home folder for cost_models.json; DASP_COST_MODEL must name a file"
    assert (status, told in out) == (0, True)
    assert told in error(capsys, "tune", "machine", *CPU)
    assert rungs_cuda._read_table.__wrapped__() == {}


def test_json_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "info", "poisson2d:9", *CPU, "--json")
    found = json.loads(out)
    assert (status, found["matrix"], found["shape"], found["device"]) == (0, "poisson2d:9", [81, 81], "cpu")
    assert sum(part["rows"] for part in found["row_lengths"]) == 81
    assert found["plan"]["format"] == "sell"
    status, out, _ = run(capsys, "info", "rmat:8", *CPU, "--format", "dasp", "--json")
    assert json.loads(out)["plan"]["format"] == "dasp"
    status, out, _ = run(capsys, "config", "--json")
    assert (status, json.loads(out)["dasp"]) == (0, dasp.__version__)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_table_of_commands_says_what_their_modules_say(command: str) -> None:
    parser = cli.build_parser(command)
    (commands,) = (action for action in parser._actions if action.choices)
    assert list(commands.choices) == list(COMMANDS)
    said = {action.dest: action.help for action in commands._choices_actions}
    assert said == {name: command.summary for name, command in COMMANDS.items()}
    assert commands.choices[command].get_default("run") is not None or command == "tune"


def test_a_warning_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(_: object) -> int:
        warnings.warn("take care\nTraceback ...", stacklevel=1)
        return 0

    monkeypatch.setattr("dasp.cli.machine._config", warn)
    assert run(capsys, "config") == (0, "", "dasp: warning: take care\n")


LAUNCHERS = {
    "mpirun": {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "{}"},
    "srun": {"PMI_SIZE": "2", "PMI_RANK": "{}"},
    "torchrun": {"WORLD_SIZE": "2", "RANK": "{}", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("words", [["solve", "--nosuch"], ["bogus"], ["solve", "--help"]])
def test_what_all_ranks_would_say_the_first_one_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, launcher: str, words: list[str]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(cli.time, "sleep", slept.append)
    said = {}
    for rank in (0, 1):
        for name, value in LAUNCHERS[launcher].items():
            monkeypatch.setenv(name, value.format(rank))
        assert cli.main(words) == (0 if "--help" in words else cli.EXIT_USER_ERROR)
        said[rank] = "".join(capsys.readouterr())
    assert said[0]
    assert said[1] == ""
    assert len(slept) == ("--help" not in words)  # so that rank 0 has spoken before a launcher ends it


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["COMMAND", "dasp --help"]),
        (["bogus"], ["'bogus'", "info"]),
        (["info"], ["MATRIX", "dasp info --help"]),
        (["info", "a", "b"], ["unrecognized arguments: b"]),
        (["info", "poisson3d:5", "--bogus"], ["--bogus"]),
        (["info", "nosuchfile.mtx"], ["nosuchfile.mtx", "not found"]),
        (["info", "nosuch:5"], ["known model"]),
        (["info", "poisson3d:x"], ["'x'", "whole number"]),
        (["info", "poisson3d:-5"], ["at least 1"]),
        (["info", "dense:10000000"], ["half of this machine's memory"]),
        (["info", "poisson3d:5", "--seed", "-1"], ["--seed", "-1 was given"]),
        (["info", "poisson3d:5", "--seed", "one"], ["--seed", "one was given"]),
        (["info", "poisson3d:5", "--device", "tpu"], ["tpu"]),
        (["info", "poisson3d:5", "--html", "a.txt"], ["'a.txt'", "must end in .html"]),
        (["info", "poisson3d:5", "--html", "/nosuch/folder/a.html"], ["/nosuch/folder must exist"]),
        (["solve", "lp:5:9", "--precond", "jacobi"], ["5 x 9", "--precond jacobi", "square"]),
        (["solve", "lp:5:9", "--method", "cg"], ["(5, 9)", "square", "lsqr and lsmr"]),
        (["solve", "poisson3d:5", "--method", "magic"], ["magic", "cg"]),
        (["solve", "poisson3d:5", "--method", "lsqr", "--precond", "ic0"], ["--precond is ic0", "lsqr"]),
        (["solve", "poisson3d:5", "--block", "3"], ["--block is 3", "--precond auto has no blocks"]),
        (["solve", "poisson3d:5", "--rtol", "0"], ["--rtol", "0 was given"]),
        (["solve", "poisson3d:5", "--rtol", "nan"], ["--rtol", "nan was given"]),
        (["solve", "poisson3d:5", "--maxiter", "0"], ["--maxiter", "0 was given"]),
        (["solve", "kkt:20", "--precond", "jacobi"], ["10 rows", "row 20", "diagonal"]),
        (["solve", "poisson3d:5", "--precond", "magic"], ["magic", "multigrid"]),
        (["solve", "poisson3d:5", "--out", "x.txt"], ["x.txt", ".npy or .mtx"]),
        (["solve", "poisson3d:5", "--rhs", "two"], ["--rhs is two", "random"]),
        (["solve", "poisson3d:5", "--rhs", "nosuch.npy"], ["nosuch.npy"]),
        (["solve", "poisson3d:5", "--plot", "a.xyz"], [".png, .pdf or .svg"]),
        (["solve"], ["MATRIX"]),
        (["info", "poisson3d:5", "--format", "rows"], ["--format", "'rows'", "'sell'"]),
        (["bench", *CPU, "poisson3d:5", "--seconds", "nan"], ["--seconds", "nan was given", "above 0"]),
        (["bench", *CPU, "poisson3d:5", "--seconds", "-1"], ["--seconds", "-1 was given"]),
        (["tune", "mend"], ["'mend'", "gemm"]),
        (["tune", "gemm", "--bogus"], ["--bogus"]),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], parts: list[str]
) -> None:
    line = error(capsys, *words)
    for part in parts:
        assert part in line


@pytest.mark.parametrize("command", ["info", "solve"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.mtx", b"%%MatrixMarket matrix coordinate real general\n3 3 3\n1 1 1\n"),
        ("a.npz", b"PK not zip"),
    ],
)
def test_a_bad_file_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    assert name in error(capsys, command, str(tmp_path / name))
    assert str(tmp_path) in error(capsys, command, str(tmp_path))


def test_debug_shows_where_an_error_came_from() -> None:
    with pytest.raises(ValueError, match="whole number"):
        cli.main(["info", "poisson3d:x", "--debug"])
    with pytest.raises(ValueError, match="not found"):
        cli.main(["--debug", "info", "nosuchfile"])


def test_ctrl_c_is_exit_status_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dasp.cli.machine.show_config", interrupted)
    status, _, err = run(capsys, "config")
    assert status == 130
    assert err.count("\n") == 1


def process(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload,no-any-return]


def test_it_runs_as_a_process(tmp_path: Path) -> None:
    # From another folder, so that the installed package or the path finds it, not the folder we are in.
    environment = {**os.environ, "PYTHONPATH": str(Path(dasp.__file__).parents[1])}
    done = process("dasp", "info", "poisson3d:6", *CPU, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "216 x 216" in done.stdout
    wrong = process("dasp.cli.main", "info", "nosuchfile", cwd=tmp_path, env=environment)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("dasp: error: nosuchfile was not found")
    assert wrong.stderr.count("\n") == 1


def test_without_an_output_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as of `dasp ... >&-`
    assert cli.main(["info", "poisson2d:3", *CPU]) == 0


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="names of any bytes")
def test_a_name_that_cannot_be_printed_is_escaped(tmp_path: Path) -> None:
    name = os.fsdecode(b"odd\xff.mtx")
    (tmp_path / name).write_text("%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 2\n")
    environment = os.environ | {
        "PYTHONIOENCODING": "ascii",
        "PYTHONPATH": str(Path(dasp.__file__).parents[1]),
    }
    words = "info", name, *CPU, "--html", "page.html"
    done = process("dasp", *words, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("odd\\udcff.mtx: 1 x 1")
    assert "odd?.mtx" in (tmp_path / "page.html").read_text()


def test_an_error_that_cannot_be_printed_has_its_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    for stderr in (None, Full()):  # None as of `dasp ... 2>&-`, where print would take stdout
        monkeypatch.setattr(sys, "stderr", stderr)
        assert cli.main(["info", "nosuchfile"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [("--help", ""), ("--version", "1"), ("tune --help", "1"), ("config", ""), ("config", "1")],
)
def test_output_that_cannot_be_written_is_an_error(words: str, unbuffered: str) -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "dasp", *words.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert (done.returncode, done.stderr) == (2, "dasp: error: No space left on device\n")


@pytest.mark.skipif(os.name != "posix", reason="pipes of a POSIX shell")
def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "dasp", "config"],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
