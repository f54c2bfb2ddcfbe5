"""ReMax's baseline in TRL: one greedy response a prompt, by the engine that draws the sampled ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from trl.data_utils import prepare_multimodal_messages

_TRANSFORMERS = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None, "min_p": None}
_VLLM = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


@dataclass(frozen=True)
class GreedyPass:
    """Rewards [N, K] and lengths [N] of the greedy response to the prompt of each of N responses, of every rank.

    rewards: by reward function, NaN where missing. prompts: [N] bool, True at one response of each prompt.
    """

    rewards: Tensor
    lengths: Tensor
    prompts: Tensor


@dataclass(frozen=True)
class Shares:
    """Which rank answers which prompt: the one where the prompt's first response lies.

    All ranks answer equally many, since generating and gathering are collective: a rank with fewer prompts answers its
    first one again.
    """

    rows: int
    ranks: int
    group_size: int

    def prompts(self, rank: int) -> list[int]:
        """Groups that start on a rank."""
        groups = range(-(-self.rows * self.ranks // self.group_size))
        return [group for group in groups if group * self.group_size // self.rows == rank]

    @property
    def width(self) -> int:
        """Greedy responses of each rank."""
        return max(len(self.prompts(rank)) for rank in range(self.ranks))

    def own_rows(self, rank: int) -> list[int]:
        """A rank's rows whose prompts it answers."""
        first = [group * self.group_size - rank * self.rows for group in self.prompts(rank)]
        return first + [0] * (self.width - len(first))

    def places(self) -> list[int]:
        """For every rank's responses, where the answer to their prompt is among all answers: N indices."""
        answered = {g: rank * self.width + i for rank in range(self.ranks) for i, g in enumerate(self.prompts(rank))}
        return [answered[row // self.group_size] for row in range(self.rows * self.ranks)]


def greedy_pass(trainer: Any, inputs: list[dict[str, Any]], group_size: int) -> GreedyPass:
    """Draw and score one greedy response a prompt; the responses of a prompt share it, on whichever rank they lie.

    Reward functions see a call of their own with one row a prompt, and the dataset columns of that row. What TRL and
    the reward functions log meanwhile is put back, except the count of tokens, which were generated.
    """
    accelerator = trainer.accelerator
    shares = Shares(len(inputs), accelerator.num_processes, group_size)
    asked = [inputs[row] for row in shares.own_rows(accelerator.process_index)]
    prompts = _prompts(asked)
    with _logs_put_back(trainer), _greedy_decoding(trainer):
        _, ids, _, completions, *_ = trainer._generate(prompts)
        rewards = trainer._calculate_rewards(asked, prompts, completions, ids)
    lengths = accelerator.gather(torch.tensor([len(row) for row in ids], device=rewards.device))
    place = torch.tensor(shares.places(), device=rewards.device)
    first = torch.arange(len(place), device=place.device) % group_size == 0
    return GreedyPass(rewards[place], lengths[place], first)


def _prompts(rows: list[dict[str, Any]]) -> list[Any]:
    """Prompts as TRL gives them to its engine: with the images of an image column in the messages."""
    prompts = [row["prompt"] for row in rows]
    if "images" in rows[0]:
        images = [row.get("images") for row in rows]
    elif "image" in rows[0]:
        images = [None if row.get("image") is None else [row["image"]] for row in rows]
    else:
        return prompts
    if all(found == [] for found in images):
        return prompts
    return [prepare_multimodal_messages(prompt, images=found) for prompt, found in zip(prompts, images, strict=True)]


@contextmanager
def _greedy_decoding(trainer: Any) -> Iterator[None]:
    """One response a prompt, always the most likely token; what else the user has set for generation stays."""
    with ExitStack() as stack:
        stack.enter_context(_set(trainer, num_generations=1, num_generations_eval=1))
        if trainer.use_vllm:
            # What stands in generation_kwargs would win over the engine's own settings.
            kept = {k: v for k, v in trainer.vllm_generation.generation_kwargs.items() if k not in (*_VLLM, "n")}
            stack.enter_context(_set(trainer.vllm_generation, generation_kwargs=kept, **_VLLM))
        else:
            config = copy.deepcopy(trainer.generation_config)
            config.update(**_TRANSFORMERS)
            kwargs = {**trainer.generation_kwargs, **_TRANSFORMERS}
            stack.enter_context(_set(trainer, generation_config=config, generation_kwargs=kwargs))
        yield


@contextmanager
def _set(holder: Any, **values: Any) -> Iterator[None]:
    """Give attributes other values for a block."""
    before = {name: getattr(holder, name) for name in values}
    for name, value in values.items():
        setattr(holder, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(holder, name, value)


@contextmanager
def _logs_put_back(trainer: Any) -> Iterator[None]:
    """What is logged about greedy responses is not about the sampled ones that logs and tables show."""
    mode = "train" if trainer.model.training else "eval"
    kept = copy.deepcopy((trainer._pending_extra_logs, trainer._pending_metrics, trainer._metrics[mode]))
    try:
        yield
    finally:
        trainer._pending_extra_logs, trainer._pending_metrics, metrics = kept
        metrics["num_tokens"] = trainer._metrics[mode]["num_tokens"]
        trainer._metrics[mode] = metrics
