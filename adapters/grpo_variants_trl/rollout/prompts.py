"""New prompts for dynamic sampling: the data set in an order that is the same on every rank and after a resume."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from typing import Any

import torch
from datasets import IterableDataset


def task_text(trainer: Any, row: Mapping[str, Any]) -> str | None:
    """What a row of the data set asks for, as text that is the same in every optimizer step: its prompt.

    With environments it is the whole row, since any column may tell an environment what to ask. None where a row holds
    something else than text and numbers, such as an image.
    """
    task = row["prompt"] if trainer.environment_factories is None else row
    if isinstance(task, str):
        return task
    try:
        return json.dumps(task, sort_keys=True, ensure_ascii=False)
    except TypeError:
        return None


class PromptStream:
    """Rows of a data set, shuffled anew every epoch (a stream within its buffer, as TRL does), without end.

    The order depends on the seed alone, so it is the same on every rank. `drawn` is its whole state.
    """

    def __init__(self, dataset: Any, *, seed: int, shuffle: bool) -> None:
        """Start at the first row of the first epoch."""
        self.dataset = dataset
        self.seed = seed
        self.shuffle = shuffle
        self.drawn = 0
        self._rows: Iterator[dict[str, Any]] | None = None

    def take(self, size: int, known: Callable[[dict[str, Any]], bool] = lambda row: False) -> list[dict[str, Any]]:
        """The next `size` rows, passing over known ones; one pass over the data set at most is spent on that."""
        taken: list[dict[str, Any]] = []
        passed, limit = 0, self._size()
        while len(taken) < size:
            row = self._next()
            if passed < limit and known(row):
                passed += 1
                continue
            taken.append(dict(row))
        return taken

    def seek(self, drawn: int) -> None:
        """Go to where `drawn` rows have been taken."""
        self.drawn, self._rows = drawn, None

    def _size(self) -> int:
        # A stream has no length: this many known prompts may be passed over.
        return 1000 if isinstance(self.dataset, IterableDataset) else len(self.dataset)

    def _next(self) -> dict[str, Any]:
        if self._rows is None:
            self._rows = self._from(self.drawn)
        self.drawn += 1
        return next(self._rows)

    def _from(self, start: int) -> Iterator[dict[str, Any]]:
        return self._streamed(start) if isinstance(self.dataset, IterableDataset) else self._indexed(start)

    def _indexed(self, start: int) -> Iterator[dict[str, Any]]:
        size = len(self.dataset)
        epoch, place = divmod(start, size)
        while True:
            order = self._order(size, epoch)
            yield from (self.dataset[index] for index in order[place:])
            epoch, place = epoch + 1, 0

    def _order(self, size: int, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(size))
        generator = torch.Generator().manual_seed(self.seed + epoch)
        return torch.randperm(size, generator=generator).tolist()

    def _streamed(self, start: int) -> Iterator[dict[str, Any]]:
        return islice(self._epochs(), start, None)

    def _epochs(self) -> Iterator[dict[str, Any]]:
        for epoch in count():
            rows = self.dataset.shuffle(seed=self.seed + epoch) if self.shuffle else self.dataset
            row = None
            for row in rows:
                yield row
            if row is None:
                raise ValueError("the stream of prompts is empty; give a data set with rows.")
