from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dsh_protocol.version import FORMAT_VERSION, PROTOCOL_VERSION, VERSION
from dshd import main as command
from support.daemon import DaemonProcess, clean_environ, open_daemon
from support.rpc import call

if TYPE_CHECKING:
    from pathlib import Path


def dshd(*argv: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dshd.main", *argv],
        env=clean_environ(home) | env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on standard error of a start that was refused."""
    assert done.returncode == 78, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_the_version_names_protocol_and_format_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--version"])
    assert ended.value.code == 0
    expected = f"dshd {VERSION} (protocol {PROTOCOL_VERSION}, log format {FORMAT_VERSION})\n"
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    "argv",
    [
        ["serve", "--compression", "lzma"],
        ["--batch-window", "soon"],
        ["--batch-window", "-1"],
        ["--batch-window", "nan"],
        ["salvage"],
        ["start"],
    ],
)
def test_usage_errors_end_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(argv)
    assert ended.value.code == 2
    assert "usage: dshd" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["DSHD_SOCKET", "DSHD_ROOT", "DSHD_STATE_DIR", "XDG_RUNTIME_DIR"])
def test_a_relative_path_in_the_environment_is_refused(name: str, tmp_path: Path) -> None:
    assert name in refused(dshd("serve", home=tmp_path, **{name: "here"}))


def test_a_runtime_folder_that_is_set_but_missing_is_refused_and_not_replaced(
    tmp_path: Path,
) -> None:
    missing = str(tmp_path / "missing")
    assert "XDG_RUNTIME_DIR" in refused(dshd(home=tmp_path, XDG_RUNTIME_DIR=missing))
    assert not os.path.exists(missing)  # noqa: PTH110  # a plain string


def test_a_root_that_is_a_file_or_open_to_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refused(dshd("--root", str(tmp_path / "file"), home=tmp_path))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert "chmod 700" in refused(dshd("--root", str(tmp_path / "open"), home=tmp_path))


def test_a_socket_path_that_is_too_long_is_refused_with_its_length(tmp_path: Path) -> None:
    long = "/" + "x" * 200
    assert "has 201 bytes" in refused(dshd("--socket", long, home=tmp_path))


def test_control_characters_of_a_path_do_not_reach_the_terminal(tmp_path: Path) -> None:
    text = refused(dshd(home=tmp_path, DSHD_ROOT="\x1b]0;title\x07\n"))
    assert "\x1b" not in text


def test_closed_standard_descriptors_are_filled_before_anything_is_opened(tmp_path: Path) -> None:
    script = (
        "import os; os.closerange(0, 3)\n"
        "from dshd.main import fill_standard_fds; fill_standard_fds()\n"
        "fd = os.open(os.environ['OUT'], os.O_WRONLY | os.O_CREAT)\n"
        "os.write(fd, str([os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2)] + [fd]).encode())"
    )
    out = tmp_path / "out"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "OUT": str(out)}, check=True)
    assert out.read_text() == "['/dev/null', '/dev/null', '/dev/null', 3]"


def test_sigterm_ends_an_idle_daemon_with_0_and_removes_its_socket(tmp_path: Path) -> None:
    with open_daemon(tmp_path) as daemon:
        assert daemon.stop() == 0
        assert not daemon.socket.exists()


def test_a_second_daemon_on_the_root_ends_with_78_and_names_the_holder(tmp_path: Path) -> None:
    with open_daemon(tmp_path) as first:
        other = DaemonProcess(tmp_path / "other", flags=["--root", str(first.root)])
        (tmp_path / "other").mkdir()
        try:
            assert other.launch().wait(20) == 78
            assert f"pid {first.pid}" in other.output()
        finally:
            other.remove()
        assert first.call("daemon.status")["root"] == str(first.root)


def test_a_second_daemon_on_the_socket_ends_with_78_and_the_first_is_undisturbed(
    tmp_path: Path,
) -> None:
    with open_daemon(tmp_path) as first:
        done = dshd("--socket", str(first.socket), home=tmp_path)
        assert f"(pid {first.pid}) already listens" in refused(done)
        assert first.call("daemon.status")["socket"] == str(first.socket)


def test_a_killed_daemon_leaves_nothing_that_keeps_the_next_one_from_starting(
    tmp_path: Path,
) -> None:
    with open_daemon(tmp_path) as daemon:
        for _ in range(3):
            daemon.kill()
            daemon.start()


def test_a_client_without_any_flag_finds_the_daemon_by_the_pointer(tmp_path: Path) -> None:
    with open_daemon(tmp_path) as daemon:
        assert (daemon.state_dir / "socket").read_text() == str(daemon.socket)


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_every_file_and_folder_is_private_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    wrapper = [
        sys.executable,
        "-c",
        f"import os, sys; os.umask({mask}); os.execv(sys.argv[1], sys.argv[1:])",
    ]
    with open_daemon(tmp_path, prefix=wrapper) as daemon:
        with daemon.connect() as connection:
            made = connection.call("session.create", cwd=str(tmp_path))
            connection.call("session.flush", id=made["session"]["id"], writer=made["writer"])
        for top in (daemon.root, daemon.state_dir):
            for path in [top, *top.rglob("*")]:
                expected = 0o700 if path.is_dir() else 0o600
                assert path.stat().st_mode & 0o777 == expected, path


def test_a_call_over_a_connection_of_its_own_is_answered(tmp_path: Path) -> None:
    with open_daemon(tmp_path) as daemon:
        assert call(daemon.socket, "daemon.metrics")["text"].endswith("# EOF\n")
