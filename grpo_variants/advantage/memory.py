"""Memory: what a rule remembers of earlier steps, by prompt; explicit, savable, and never in a module's globals."""

from __future__ import annotations

import reprlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Memory:
    """Numbers that advantage rules keep from step to step, a row per prompt.

    Make one for a run, pass it as `state=` to every `gv.advantages`, and give groups ids that mean the same prompt in
    every step: its text, or its place in the data. Only `gv.advantages` writes to it. `state_dict()` is made of plain
    lists and numbers and goes through JSON where the ids do.
    """

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._tables: dict[str, dict[Hashable, tuple[float, ...]]] = {}

    def recall(self, table: str, keys: Sequence[Hashable], unseen: Sequence[float]) -> Tensor:
        """Rows of a table, in float64: [P, F]; `unseen` for a key that it does not hold."""
        rows = self._tables.get(table, {})
        return torch.tensor([rows.get(key, tuple(unseen)) for key in keys], dtype=torch.float64).view(-1, len(unseen))

    def store(self, table: str, keys: Sequence[Hashable], rows: Tensor, seen: Tensor) -> None:
        """Replace the rows [P, F] of those keys for which `seen` [P] holds."""
        kept = self._tables.setdefault(table, {})
        for key, row, here in zip(keys, rows.tolist(), seen.tolist(), strict=True):
            if here:
                kept[key] = tuple(row)

    def __len__(self) -> int:
        """Number of rows."""
        return sum(map(len, self._tables.values()))

    def __eq__(self, other: object) -> bool:
        """Whether two memories hold the same."""
        return isinstance(other, Memory) and self._tables == other._tables

    __hash__ = None  # type: ignore[assignment]

    def state_dict(self) -> dict[str, Any]:
        """Everything that is remembered: {table: {"keys": [...], "rows": [[...]]}}."""
        return {
            name: {"keys": list(table), "rows": [list(row) for row in table.values()]}
            for name, table in self._tables.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave, in place of what is remembered; a list as a key (from JSON) is a tuple.

        Raises ValueError for anything else, and then still remembers what it did.
        """
        try:
            self._tables = {
                name: {_key(key): tuple(map(float, row)) for key, row in zip(table["keys"], table["rows"], strict=True)}
                for name, table in state.items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                'a memory is {table: {"keys": [...], "rows": [[...], ...]}} with a row of numbers for each key, as '
                f"state_dict() gives it; got {reprlib.repr(state)}"
            ) from error


def _key(key: Any) -> Hashable:
    return tuple(map(_key, key)) if isinstance(key, list) else key
