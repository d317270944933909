"""What `dshctl` makes of a path that a person gave it to write to, whatever is there."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dsh_client.cli.writing import write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cli.conftest import Ended
    from cli.scripted import ScriptedDaemon

    Dshctl = Callable[..., Ended]

SESSION: dict[str, Any] = {"id": "a1", "header": {"version": 0, "id": "a1", "createdAt": 1}}
LINES = b'{"type":"session","version":0,"id":"a1","createdAt":1}\n'
FIGURES = "# EOF\n"
WAYS = {
    "export": (("export", "a1", "-f", "jsonl", "--to"), LINES),
    "metrics": (("metrics", "--textfile"), FIGURES.encode()),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, daemon: ScriptedDaemon) -> tuple[tuple[str, ...], bytes]:
    """The words in front of the path, and what is to be written."""
    answer(daemon)
    return WAYS[request.param]


def answer(daemon: ScriptedDaemon) -> None:
    daemon.answers["session.open"] = lambda _: {"session": SESSION, "recovery": None}
    daemon.answers["session.stat"] = lambda _: {"session": SESSION}
    daemon.answers["session.read"] = lambda _: {"events": [], "nextOffset": None, "end": 0}
    daemon.answers["daemon.metrics"] = lambda _: {"contentType": "x", "text": FIGURES}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "to"
    made.mkdir()
    return made


def test_links_are_followed_and_the_file_at_their_end_is_replaced_in_one_step(
    dshctl: Dshctl, way: tuple[tuple[str, ...], bytes], folder: Path
) -> None:
    words, wanted = way
    (folder / "deep").mkdir()
    (folder / "deep" / "old").write_text("old")
    (folder / "deep" / "second").symlink_to("old")
    (folder / "first").symlink_to("deep/second")
    (folder / "dangling").symlink_to("deep/new")
    with (folder / "deep" / "old").open() as before:
        for name, place in (("first", "old"), ("dangling", "new")):
            assert dshctl(*words, str(folder / name)).code == 0
            assert (folder / name).is_symlink()
            assert (folder / "deep" / place).read_bytes() == wanted
        assert before.read() == "old", "a reader keeps what it had"
    assert {path.name for path in (folder / "deep").iterdir()} == {"old", "new", "second"}


def test_a_fifo_stays_one_and_its_reader_gets_all(
    dshctl: Dshctl, way: tuple[tuple[str, ...], bytes], folder: Path
) -> None:
    words, wanted = way
    os.mkfifo(folder / "fifo")
    got: list[bytes] = []
    reader = threading.Thread(
        target=lambda: got.append((folder / "fifo").read_bytes()), daemon=True
    )
    reader.start()
    assert dshctl(*words, str(folder / "fifo")).code == 0
    reader.join(30)
    assert got == [wanted]
    assert stat.S_ISFIFO((folder / "fifo").lstat().st_mode)


def test_a_device_is_written_into_also_through_a_link(
    dshctl: Dshctl, way: tuple[tuple[str, ...], bytes], folder: Path
) -> None:
    words, _ = way
    for name, device, code in (("null", "/dev/null", 0), ("full", "/dev/full", 1)):
        (folder / name).symlink_to(device)
        ended = dshctl(*words, str(folder / name))
        assert ended.code == code
        assert ("No space left on device" in ended.err) == (code == 1)
        assert (folder / name).readlink().as_posix() == device
        assert stat.S_ISCHR((folder / name).stat().st_mode)
    assert len(list(folder.iterdir())) == 2


def test_what_cannot_be_written_to_is_refused_and_left(
    dshctl: Dshctl,
    way: tuple[tuple[str, ...], bytes],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words, _ = way
    monkeypatch.chdir(folder)
    (folder / "round").symlink_to("round")
    (folder / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        for name, told in (
            ("socket", "it is a socket; name a file"),
            ("folder", "Is a directory"),
            ("round", "symbolic links"),
            ("none/x", "No such file"),
            ("none/", "No such file"),
            ("", "No such file"),
        ):
            ended = dshctl(*words, name)
            assert ended.code == (2 if words[0] == "export" else 1)
            assert told in ended.err
    assert {path.name for path in folder.iterdir()} == {"socket", "folder", "round"}
    assert stat.S_ISSOCK((folder / "socket").lstat().st_mode)


def test_a_dash_is_standard_output(
    dshctl: Dshctl,
    way: tuple[tuple[str, ...], bytes],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words, wanted = way
    monkeypatch.chdir(folder)
    for more in ((), ("-o", "json")):
        ended = dshctl(*more, *words, "-")
        assert (ended.code, ended.out.encode(), ended.err) == (0, wanted, "")
    assert list(folder.iterdir()) == []


def test_an_open_descriptor_is_written_on_where_it_stands(
    daemon: ScriptedDaemon, way: tuple[tuple[str, ...], bytes], folder: Path
) -> None:
    words, wanted = way
    program = [sys.executable, "-m", "dsh_client.cli.main", "--socket", str(daemon.path), *words]
    (folder / "stdout").symlink_to("/proc/self/fd/1")  # as /dev/stdout, which no test should risk
    for path in (str(folder / "stdout"), "/dev/fd/1", "/proc/self/fd/1"):
        with (folder / "out").open("wb") as out:
            out.write(b"before\n")
            out.flush()
            subprocess.run([*program, path], check=True, stdout=out, timeout=60)
            out.seek(0, os.SEEK_END)
            out.write(b"behind\n")
        assert (folder / "out").read_bytes() == b"before\n" + wanted + b"behind\n"


def test_a_bundle_goes_to_standard_output_where_that_is_asked_for(
    dshctl: Dshctl, daemon: ScriptedDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    answer(daemon)
    words = ("export", "a1", "-f", "bundle")
    assert dshctl(*words).code == 2
    assert dshctl(*words, "--to", str(folder / "x")).code == 0
    assert dshctl(*words, "--to", "-").out.encode() == (folder / "x").read_bytes()


def test_a_file_stays_as_it_was_when_what_is_to_be_written_breaks_off(folder: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError

    for name in ("old", "new"):
        (folder / "old").write_text("old")
        with pytest.raises(RuntimeError):
            write_file(str(folder / name), broken(), 0o600)
        assert [path.name for path in folder.iterdir()] == ["old"]
        assert (folder / "old").read_text() == "old"


def test_a_file_that_is_replaced_gets_the_mode_of_a_new_one(folder: Path) -> None:
    (folder / "x").write_text("old")
    (folder / "x").chmod(0o666)
    assert write_file(str(folder / "x"), [b"new"], 0o600) == 3
    assert (folder / "x").stat().st_mode & 0o777 == 0o600
