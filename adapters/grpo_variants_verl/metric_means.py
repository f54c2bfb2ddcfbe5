"""Metrics of a policy loss as means over the tokens or responses of an update, whatever the split into micro-batches.

verl averages what a policy loss reports over micro-batches and ranks: a micro-batch without a token counts as much as a
full one, as a mean of 0. A `Mean` keeps the count that it is a mean over, and verl's `Metric` is patched to use it.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from verl.utils.metric import AggregationType, Metric


class Mean(Metric):
    """A mean with its count; appended means are weighted by theirs.

    0 where it was taken over nothing.
    """

    def __init__(self, value: float = 0.0, count: float = 0.0) -> None:
        """A mean over `count` tokens or responses; over nothing by default."""
        super().__init__(AggregationType.MEAN)
        if count:
            self.values.append((value, count))

    def append(self, value: Mean) -> None:
        """Join another mean."""
        self.values += value.values

    extend = append

    def init_list(self) -> Mean:
        """A mean over nothing, for others to be joined to."""
        return Mean()

    def aggregate(self) -> float:
        """The mean over everything that was joined."""
        counted = sum(count for _, count in self.values)
        return sum(value * count for value, count in self.values) / counted if counted else 0.0

    def __float__(self) -> float:
        """The mean."""
        return self.aggregate()


def keep_means() -> None:
    """Patch verl's Metric to weight means by their counts when it joins them; doing it again changes nothing."""
    if hasattr(Metric.from_dict, "__wrapped__"):
        return
    made, joined = Metric.from_dict, Metric.aggregate_dp

    @wraps(made)
    def from_dict(data: dict[str, Any], aggregation: Any) -> dict[str, Metric]:
        own = {key: value for key, value in data.items() if isinstance(value, Mean)}
        return {**made({key: value for key, value in data.items() if key not in own}, aggregation), **own}

    @wraps(joined)
    def aggregate_dp(metric_lists: list[Metric]) -> float:
        if not (metric_lists and isinstance(metric_lists[0], Mean)):
            return joined(metric_lists)
        whole = Mean()
        for part in metric_lists:
            whole.append(part)
        return whole.aggregate()

    Metric.from_dict, Metric.aggregate_dp = staticmethod(from_dict), staticmethod(aggregate_dp)
