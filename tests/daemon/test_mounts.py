"""On what file system a path lies, from tables as the kernel prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dshd.mounts import file_system, network_warning

if TYPE_CHECKING:
    from pathlib import Path

TABLE = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / BASE/far rw,relatime shared:2 - nfs4 server:/x rw
31 30 8:2 / BASE/far/local rw - xfs /dev/sdb1 rw
32 22 0:41 / BASE/with\040space rw master:1 - fuse.sshfs host: rw
33 22 0:42 / BASE/wsl rw - 9p drvfs rw

a line that is none
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    made = tmp_path / "mountinfo"
    made.write_text(TABLE.replace("BASE", str(tmp_path)))
    return made


@pytest.mark.parametrize(
    ("place", "kind", "remote"),
    [
        ("elsewhere", "ext4", False),
        ("far", "nfs4", True),
        ("far/me/root", "nfs4", True),
        ("farther", "ext4", False),
        ("far/local/root", "xfs", False),
        ("with space/root", "fuse.sshfs", True),
        ("wsl/c", "9p", True),
    ],
)
def test_a_root_on_another_machine_is_known_by_its_mount(
    tmp_path: Path,
    table: Path,
    place: str,
    kind: str,
    remote: bool,  # noqa: FBT001  # pytest gives arguments by name
) -> None:
    assert file_system(tmp_path / place, table) == kind
    warning = network_warning(tmp_path / place, table)
    assert (warning is not None) is remote
    if warning is not None:
        assert kind in warning
        assert str(tmp_path / place) in warning


def test_without_a_table_nothing_is_guessed(tmp_path: Path) -> None:
    assert file_system(tmp_path, tmp_path / "absent") is None
    assert network_warning(tmp_path, tmp_path / "absent") is None


def test_this_machine_s_own_table_is_read(tmp_path: Path) -> None:
    assert file_system(tmp_path)
