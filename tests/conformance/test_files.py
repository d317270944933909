"""The suite about files over the JSONL store, in both encodings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.files import FILES
from conformance.storages import FILE_KINDS, file_storage

if TYPE_CHECKING:
    from pathlib import Path

    from conformance.cases import Case, FileStorage


@pytest.mark.parametrize("kind", FILE_KINDS)
@pytest.mark.parametrize("case", FILES.cases, ids=[case.name for case in FILES.cases])
def test_a_store_treats_its_files_as_the_format_says(
    case: Case[FileStorage], kind: str, tmp_path: Path
) -> None:
    case.check(file_storage(kind, tmp_path))
