"""The runner: whatever keeps a proof from its line is a promise not held, and what was not tried is never passed."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from crash import run
from crash.proof import Size

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD = """
from crash.proof import Result, Size, not_run

def prove(size, scratch):
"""


@pytest.fixture
def proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, list[str]]]:
    """Return what runs one proof, given as the body of its function, and gives exit code and lines."""

    def prove(
        body: str, *promises: int, limit_s: int = 30, size: str = "quick", busy: str = ""
    ) -> tuple[int, list[str]]:
        package = tmp_path / "crash"
        package.mkdir()
        (package / "__init__.py").write_text(
            f"__path__.append({str(Path(run.__file__).parent)!r})", "utf-8"
        )
        for name, text in {"sample": body, "busy": busy}.items():
            lines = dedent(text).strip().replace("\n", "\n    ")
            (package / f"{name}.py").write_text(f"{HEAD}    {lines}\n", "utf-8")
        limits = (limit_s, limit_s, limit_s)
        proofs = [run.Proof("sample", (2, 2), limits, promises=promises, waits=bool(busy))]
        if busy:
            proofs.append(run.Proof("busy", (1, 1), limits))
        monkeypatch.setattr(run, "PROOFS", tuple(proofs))
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(run.__file__).parents[1]}")
        code = run.main(["--size", size])
        return code, capsys.readouterr().out.split("\n")[:-1]

    return prove


def test_a_promise_that_is_held_is_one_line_and_exit_code_0(
    proved: Callable[..., tuple[int, list[str]]],
) -> None:
    code, lines = proved('yield Result(7, "it", "3", "3", held=True)', 7)
    assert code == 0
    assert lines[0] == "  7  ok        it: 3 (promised: 3)"


def test_a_figure_that_falls_short_is_not_held(
    proved: Callable[..., tuple[int, list[str]]],
) -> None:
    body = 'yield Result(7, "it", "2", "3", held=False, why=("one is missing",))'
    code, lines = proved(body, 7)
    assert code == 1
    assert lines[0].startswith("  7  NOT HELD")
    assert lines[1].strip() == "one is missing"


def test_a_proof_that_could_not_run_is_not_passed(
    proved: Callable[..., tuple[int, list[str]]],
) -> None:
    code, lines = proved('yield not_run(7, "it", "3", "no such device")', 7)
    assert code == 0
    assert lines[0].startswith("  7  not run")
    assert lines[-1].endswith("0 fell short, 1 could not be tried here")


@pytest.mark.parametrize(("size", "code"), [("quick", 0), ("full", 1)])
def test_time_that_falls_short_is_judged_only_where_nothing_else_runs(
    proved: Callable[..., tuple[int, list[str]]], size: str, code: int
) -> None:
    body = 'yield Result(7, "it", "2 s", "1 s", held=False, timed=True)'
    assert proved(body, 7, size=size)[0] == code


@pytest.mark.parametrize(
    "body",
    ['raise ValueError("a fault of the proof")\nyield', "return\nyield", "import os\nos._exit(0)"],
    ids=["raises", "says nothing", "ends"],
)
def test_a_proof_that_comes_to_nothing_holds_none_of_its_promises(
    proved: Callable[..., tuple[int, list[str]]], body: str
) -> None:
    code, lines = proved(body, 7, 8)
    assert code == 1
    assert [line[:13] for line in lines[:2]] == ["  7  NOT HELD", "  8  NOT HELD"]


def test_a_proof_that_raises_after_a_line_keeps_the_line_and_fails(
    proved: Callable[..., tuple[int, list[str]]],
) -> None:
    body = 'yield Result(7, "it", "3", "3", held=True)\nraise ValueError'
    code, lines = proved(body, 7)
    assert code == 1
    assert any(line.startswith("  7  ok") for line in lines)


def test_a_proof_that_does_not_end_is_ended(proved: Callable[..., tuple[int, list[str]]]) -> None:
    code, lines = proved("import time\ntime.sleep(600)\nyield", 7, limit_s=2)
    assert code == 1
    assert "not ended after 2 s" in lines[0]


def test_a_proof_that_does_not_end_keeps_what_it_had(
    proved: Callable[..., tuple[int, list[str]]],
) -> None:
    body = 'yield Result(7, "it", "3", "3", held=True)\nimport time\ntime.sleep(600)'
    code, lines = proved(body, 7, limit_s=2)
    assert code == 1
    assert any(line.startswith("  7  ok") for line in lines)
    assert any("not ended after 2 s" in line for line in lines)


@pytest.mark.parametrize("how", ["", "alone=True", "waits=True"])
def test_ctrl_c_ends_the_proofs_too(tmp_path: Path, how: str) -> None:
    package = tmp_path / "crash"
    package.mkdir()
    (package / "__init__.py").write_text(
        f"__path__.append({str(Path(run.__file__).parent)!r})", "utf-8"
    )
    told = tmp_path / "told"
    body = f"""
    import os, pathlib, time
    pathlib.Path({str(told)!r}).write_text(str(os.getpid()))
    time.sleep(600)
    yield
"""
    (package / "sample.py").write_text(HEAD + body, "utf-8")
    proof = f'run.Proof("sample", (1, 1), (600, 600, 600), {how})'
    begun = f"""
import signal
from crash import run
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process of a shell ignores it
run.PROOFS = ({proof},)
run.main([])
"""
    path = f"{tmp_path}:{Path(run.__file__).parents[1]}"
    with Popen([sys.executable, "-c", begun], stderr=PIPE, env={"PYTHONPATH": path}) as process:
        try:
            deadline = time.monotonic() + 20
            while not (told.exists() and told.read_text("utf-8")):
                assert time.monotonic() < deadline, "the proof has not begun"
                time.sleep(0.02)  # it is a process of a process
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=10)
        except BaseException:
            process.kill()
            with suppress(OSError, ValueError):
                os.kill(int(told.read_text("utf-8")), signal.SIGKILL)
            raise
    assert process.returncode != 0
    assert b"KeyboardInterrupt" in said
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text("utf-8")), 0)


def test_a_proof_that_waits_keeps_no_other_from_its_place(
    proved: Callable[..., tuple[int, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "TOGETHER", 1)
    seen = f"__import__('pathlib').Path({str(tmp_path / 'seen')!r})"
    waits = f"""
    import time
    while not {seen}.exists():
        time.sleep(0.02)
    yield Result(7, "it", "3", "3", held=True)
"""
    busy = f"""
    {seen}.touch()
    yield Result(8, "the other", "3", "3", held=True)
"""
    code, lines = proved(waits, 7, limit_s=10, busy=busy)
    assert code == 0
    assert [line[:10] for line in lines[:2]] == ["  7  ok   ", "  8  ok   "]


def test_every_proof_of_the_table_has_a_module() -> None:
    folder = Path(run.__file__).parent
    assert [one.name for one in run.PROOFS if not (folder / f"{one.name}.py").exists()] == []
    assert len(Size) == len(run.PROOFS[0].limit_s)
