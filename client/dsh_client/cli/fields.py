"""Chosen members of JSON results: `--fields id,header.cwd`.

The rule: of a result that holds a list of objects, each of these is cut; of any other, the result itself.
"""

from __future__ import annotations

from typing import Any

from dsh_client.cli.values import as_list, as_object


class Fields:
    """The members that are wanted, in their order; a dot goes into an object.

    Attributes:
        missing: Those that no object had so far.
    """

    def __init__(self, names: list[str]) -> None:
        """Miss all of them."""
        self._names = names
        self.missing = set(names)

    def of_document(self, document: Any) -> Any:
        """Return one document, cut."""
        whole = as_object(document)
        lists = {name: as_list(value) for name, value in whole.items() if _is_listing(value)}
        if not lists:
            return self.of_item(document)
        return {
            **whole,
            **{name: [self.of_item(one) for one in found] for name, found in lists.items()},
        }

    def of_item(self, item: Any) -> Any:
        """Return one object, cut; anything else as it is."""
        if not isinstance(item, dict):
            return item
        whole: Any = as_object(item)
        made: dict[str, Any] = {}
        for name in self._names:
            value = whole
            for part in name.split("."):
                if part not in as_object(value):
                    break
                value = as_object(value)[part]
            else:
                made[name] = value
                self.missing.discard(name)
        return made


def _is_listing(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in as_list(value))
