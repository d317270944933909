from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path

import pytest

from dshd.settings import CannotStartError, Compression, load_settings, parse_batch_window


@dataclass
class Flags:
    socket: str | None = None
    root: str | None = None
    compression: Compression = "zstd"
    batch_window: float = 0.2
    traces: bool = False


def test_flags_come_before_the_environment_and_that_before_the_state_folder() -> None:
    env = {"HOME": "/home/u", "DSHD_ROOT": "/data", "DSHD_SOCKET": "/run/s"}
    by_flag = load_settings(Flags(socket="/a/s", root="/a/r"), env)
    assert (by_flag.socket, by_flag.root) == (Path("/a/s"), Path("/a/r"))
    by_env = load_settings(Flags(), env)
    assert (by_env.socket, by_env.root) == (Path("/run/s"), Path("/data"))
    by_default = load_settings(Flags(), {"HOME": "/home/u"})
    state = Path("/home/u/.local/state/dshd")
    assert (by_default.socket, by_default.root) == (state / "dshd.sock", state / "sessions")


@pytest.mark.parametrize("name", ["DSHD_ROOT", "DSHD_SOCKET", "DSHD_STATE_DIR", "XDG_RUNTIME_DIR"])
def test_a_relative_path_in_the_environment_stops_the_start(name: str) -> None:
    with pytest.raises(CannotStartError, match=name):
        load_settings(Flags(), {"HOME": "/home/u", name: "here"})


def test_settings_do_not_change() -> None:
    settings = load_settings(Flags(), {"HOME": "/home/u"})
    with pytest.raises(FrozenInstanceError):
        settings.root = Path("/other")  # type: ignore[misc]  # what the test is about


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "61", "soon", ""])
def test_a_batch_window_that_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_batch_window(text)


def test_a_batch_window_may_be_zero() -> None:
    assert parse_batch_window("0") == 0
    assert parse_batch_window("0.05") == 0.05
