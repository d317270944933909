from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dshd import install
from support.daemon import clean_environ, open_daemon

if TYPE_CHECKING:
    from collections.abc import Sequence


def dshd(home: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dshd.main", *words],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environ(home) | env,
        timeout=30,
    )


def test_units_are_written_for_this_program_and_removed_again(tmp_path: Path) -> None:
    folder = tmp_path / ".config/systemd/user"
    done = dshd(tmp_path, "install")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == sorted(install.UNITS)
    program = Path(sys.executable).parent / "dshd"
    assert f"ExecStart={program} serve\n" in (folder / "dshd.service").read_text()
    (folder / "dshd.service.d").mkdir()
    assert dshd(tmp_path, "install", "--uninstall").returncode == 0
    assert [path.name for path in folder.iterdir()] == ["dshd.service.d"]
    assert "nothing was installed" in dshd(tmp_path, "install", "--uninstall").stdout


def test_a_unit_that_is_kept_elsewhere_is_written_there_and_its_link_stays(tmp_path: Path) -> None:
    folder, kept = tmp_path / ".config/systemd/user", tmp_path / "kept"
    folder.mkdir(parents=True)
    kept.mkdir()
    (kept / "old.service").write_text("old")
    (folder / "dshd.service").symlink_to("../../../kept/old.service")
    (folder / "dshd.socket").symlink_to(kept / "new.socket")
    done = dshd(tmp_path, "install")
    assert done.returncode == 0, done.stderr
    assert all((folder / name).is_symlink() for name in install.UNITS)
    assert "ExecStart=" in (kept / "old.service").read_text()
    assert "[Socket]" in (kept / "new.socket").read_text()
    assert len(list(kept.iterdir())) == 2


def test_a_masked_unit_or_one_that_is_no_file_is_refused_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    folder = tmp_path / ".config/systemd/user"
    folder.mkdir(parents=True)
    unit = folder / "dshd.socket"
    for target, told in (
        (os.devnull, "systemctl --user unmask dshd.socket"),
        (unit.name, "no regular file"),
        (None, "no regular file"),
    ):
        os.mkfifo(unit) if target is None else unit.symlink_to(target)
        before = unit.lstat().st_ino
        done = dshd(tmp_path, "install")
        assert done.returncode == 78
        assert told in done.stderr
        assert [path.name for path in folder.iterdir()] == [unit.name]
        assert unit.lstat().st_ino == before
        unit.unlink()


def test_the_units_can_be_looked_at_without_being_written(tmp_path: Path) -> None:
    shown = dshd(tmp_path, "install", "--print").stdout
    assert "[Socket]" in shown
    assert "ExecStart=" in shown
    assert not (tmp_path / ".config").exists()


def test_to_start_now_where_no_user_manager_answers_fails_and_says_so(tmp_path: Path) -> None:
    done = dshd(tmp_path, "install", "--now", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "no user manager answers" in done.stdout
    assert "dshd serve" in done.stdout


def test_a_path_that_no_unit_can_hold_is_refused() -> None:
    with pytest.raises(Exception, match="cannot stand in a unit"):
        install.texts(Path("/srv/a b/dshd"))


def test_the_units_verify_without_a_warning(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for name, text in install.texts(Path("/bin/true")).items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", *(str(tmp_path / name) for name in install.UNITS)],  # noqa: S607  # wherever this system has it
        capture_output=True,
        text=True,
        check=False,
        env=clean_environ(tmp_path) | {"XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


GOOD: Sequence[str] = ("check-config",)


def test_a_configuration_is_checked_without_anything_being_made(tmp_path: Path) -> None:
    done = dshd(tmp_path, *GOOD)
    assert (done.returncode, done.stderr) == (0, "")
    assert "will be made" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_would_stop_the_start_is_told_with_78(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for flags, text in (
        (("--root", str(tmp_path / "file")), "is not a folder"),
        (("--root", str(tmp_path / "open")), "chmod 700"),
        (("--socket", str(tmp_path / "open/s")), "chmod 700"),
        (("--socket", "/" + "x" * 120), "the kernel takes 107"),
        (("--socket", str(tmp_path / "file")), "is not a socket"),
    ):
        done = dshd(tmp_path, *GOOD, *flags)
        assert done.returncode == 78
        assert text in done.stderr


def test_a_running_daemon_is_noticed_and_not_disturbed(tmp_path: Path) -> None:
    with open_daemon(tmp_path) as daemon:
        words = ("--root", str(daemon.root), "--socket", str(daemon.socket))
        done = dshd(tmp_path, *GOOD, *words)
        assert done.returncode == 0
        assert "a daemon runs on the root already" in done.stdout
        assert daemon.call("daemon.status")


@pytest.mark.parametrize(
    "words",
    ["check-config", "install", "install --print", "verify", "verify --json", "--help", "-V"],
)
def test_output_that_is_lost_is_told_and_a_failure(tmp_path: Path, words: str) -> None:
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    for sink, why in (
        ("exec >&-;", "Bad file descriptor"),
        ("exec >&- <&-;", "Bad file descriptor"),
        ("exec >/dev/full;", "No space left on device"),
        ("ulimit -f 0; exec >file;", "File too large"),
    ):
        done = subprocess.run(
            ["/bin/sh", "-c", f'{sink} exec "$0" -m dshd.main {words}', sys.executable],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=clean_environ(tmp_path)
            | {"LANG": "C", "COLUMNS": "1", "DSHD_ROOT": str(root), "PATH": str(tmp_path)},
            timeout=30,
        )
        if words == "install" and "ulimit" in sink:
            assert done.returncode == 78, "the units are files, too"
            continue
        assert (done.returncode, done.stderr) == (
            1,
            f"dshd: cannot write to standard output: {why}\n",
        )
    assert (tmp_path / ".config").exists() == (words == "install")


def test_a_reader_that_is_gone_is_no_error_of_ours(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "dshd.main", "install", "--print"]
    env = clean_environ(tmp_path)
    ended = subprocess.run(words, check=False, stdout=writer, stderr=subprocess.PIPE, env=env)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")
