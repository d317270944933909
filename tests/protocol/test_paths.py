from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dsh_protocol.paths import (
    PathUnusableError,
    client_socket_path,
    client_socket_paths,
    root_dir,
    socket_path,
    state_dir,
)

if TYPE_CHECKING:
    from pathlib import Path


def runtime_dir(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir(mode=0o700)
    return made


def test_the_state_directory_is_the_first_of_three_places() -> None:
    everything = {"DSHD_STATE_DIR": "/a", "XDG_STATE_HOME": "/b", "HOME": "/c"}
    assert state_dir(everything) == "/a"
    assert state_dir({"XDG_STATE_HOME": "/b", "HOME": "/c"}) == "/b/dshd"
    assert state_dir({"HOME": "/c"}) == "/c/.local/state/dshd"


def test_without_home_the_user_database_knows_it() -> None:
    assert state_dir({}).endswith("/dshd")
    assert state_dir({"HOME": ""}).startswith("/")


def test_the_root_is_the_flag_then_the_variable_then_below_the_state_directory() -> None:
    environ = {"DSHD_ROOT": "/r", "HOME": "/c"}
    assert root_dir(environ, "/f") == "/f"
    assert root_dir(environ) == "/r"
    assert root_dir({"DSHD_STATE_DIR": "/a"}) == "/a/sessions"


def test_the_socket_is_the_flag_then_the_variable_then_the_runtime_directory_then_the_state_directory(
    tmp_path: Path,
) -> None:
    run = runtime_dir(tmp_path)
    environ = {"DSHD_SOCKET": "/s", "XDG_RUNTIME_DIR": str(run), "DSHD_STATE_DIR": "/a"}
    assert socket_path(environ, "/f") == "/f"
    assert socket_path(environ) == "/s"
    del environ["DSHD_SOCKET"]
    assert socket_path(environ) == str(run / "dshd" / "dshd.sock")
    del environ["XDG_RUNTIME_DIR"]
    assert socket_path(environ) == "/a/dshd.sock"


def test_a_relative_flag_is_taken_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert socket_path({}, "x/y.sock") == str(tmp_path / "x" / "y.sock")
    assert root_dir({}, "r") == str(tmp_path / "r")


@pytest.mark.parametrize("name", ["DSHD_STATE_DIR", "XDG_STATE_HOME", "HOME"])
def test_a_relative_variable_is_refused_and_named(name: str) -> None:
    with pytest.raises(PathUnusableError, match="not an absolute path"):
        state_dir({name: "state"})


def test_an_empty_variable_of_ours_is_refused_and_an_empty_one_of_xdg_is_not_set() -> None:
    with pytest.raises(PathUnusableError, match="DSHD_SOCKET is set but empty"):
        socket_path({"DSHD_SOCKET": "", "HOME": "/c"})
    assert socket_path({"XDG_RUNTIME_DIR": "", "DSHD_STATE_DIR": "/a"}) == "/a/dshd.sock"


@pytest.mark.parametrize("flag", ["", "a\0b"])
def test_a_flag_that_names_nothing_is_refused(flag: str) -> None:
    with pytest.raises(PathUnusableError, match="--root"):
        root_dir({}, flag)


def test_a_runtime_directory_that_is_missing_a_link_a_file_or_open_to_others_is_refused(
    tmp_path: Path,
) -> None:
    run = runtime_dir(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(run)
    file = tmp_path / "file"
    file.touch()
    for path, reason in (
        (tmp_path / "gone", "no such file"),
        (link, "not a directory"),
        (file, "not a"),
    ):
        with pytest.raises(PathUnusableError, match=reason):
            socket_path({"XDG_RUNTIME_DIR": str(path), "HOME": "/c"})
    run.chmod(0o777)
    with pytest.raises(PathUnusableError, match="mode 0777"):
        socket_path({"XDG_RUNTIME_DIR": str(run), "HOME": "/c"})


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_runtime_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    run = runtime_dir(tmp_path)
    os.chown(run, 12345, -1)
    with pytest.raises(PathUnusableError, match="belongs to user 12345"):
        socket_path({"XDG_RUNTIME_DIR": str(run), "HOME": "/c"})


def test_a_socket_named_to_a_client_is_the_only_place_to_look() -> None:
    environ = {"DSHD_SOCKET": "/s", "XDG_RUNTIME_DIR": "/run/user/1", "HOME": "/c"}
    assert client_socket_paths(environ) == ["/s"]
    assert client_socket_paths(environ, "/f") == ["/f"]


def test_a_client_looks_where_the_daemon_last_said_it_listens_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "socket").write_text("/elsewhere/dshd.sock\n")
    environ = {"DSHD_STATE_DIR": str(tmp_path), "XDG_RUNTIME_DIR": "/run/user/1"}
    assert client_socket_paths(environ) == [
        "/run/user/1/dshd/dshd.sock",
        str(tmp_path / "dshd.sock"),
        "/elsewhere/dshd.sock",
    ]


@pytest.mark.parametrize("content", [b"", b"relative", b"/a\0b", b"/" + b"x" * 5000])
def test_an_odd_pointer_points_nowhere(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "socket").write_bytes(content)
    assert client_socket_paths({"DSHD_STATE_DIR": str(tmp_path)}) == [str(tmp_path / "dshd.sock")]


def test_the_one_place_is_the_first_where_there_is_something_else_the_first(tmp_path: Path) -> None:
    environ = {"DSHD_STATE_DIR": str(tmp_path), "XDG_RUNTIME_DIR": str(runtime_dir(tmp_path))}
    assert client_socket_path(environ) == str(tmp_path / "run" / "dshd" / "dshd.sock")
    (tmp_path / "dshd.sock").touch()
    assert client_socket_path(environ) == str(tmp_path / "dshd.sock")
