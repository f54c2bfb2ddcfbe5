"""ReMax's baseline in TRL: one greedy response per prompt, by the engine that draws the sampled ones."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from trl.data_utils import prepare_multimodal_messages

from grpo_variants_trl.rollout.dynamic_sampling import draws_again
from grpo_variants_trl.step.log import mode_of

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


class GreedyBaseline:
    """Draws and scores one greedy response per prompt; the responses of a prompt share it, on whichever rank they lie.

    With transformers' generation the greedy responses are rows of the batch that the sampled ones are drawn in, since a
    small batch of their own costs nearly as much as a large one. An engine with continuous batching
    gets a call of its own. So does transformers for a batch with images, and for one whose prompts dynamic sampling may
    still replace.
    """

    def __init__(self, trainer: Any) -> None:
        """Bind the trainer, whose generation settings are known by then."""
        self.trainer = trainer
        engine = trainer.use_vllm or trainer.use_transformers_continuous_batching
        beams = None if engine else trainer.generation_config.num_beams
        self._joins = not engine and not draws_again(trainer.variant) and beams in (None, 1)
        self._drawn: list[list[int]] | None = None
        self._scoring = False

    def generate(self, trl_generate: Any, prompt_ids: list[list[int]], images: Any, fields: Any, size: int) -> Any:
        """One call of TRL's generation, `trl_generate`; draws the greedy responses too where it can."""
        if self._scoring:
            return self._greedy(trl_generate, prompt_ids, images, fields)
        if not self._joins or images is not None or fields:
            return trl_generate(prompt_ids, images, fields, size)
        accelerator = self.trainer.accelerator
        shares = Shares(len(prompt_ids), accelerator.num_processes, size)
        asked = [prompt_ids[row] for row in shares.own_rows(accelerator.process_index)]
        with _most_likely_rows(accelerator.unwrap_model(self.trainer.model_wrapped), len(asked)):
            ids, logprobs = trl_generate([*prompt_ids, *asked], images, fields, size)
        self._drawn = ids[len(prompt_ids) :]
        return ids[: len(prompt_ids)], logprobs

    def _greedy(self, trl_generate: Any, prompt_ids: list[list[int]], images: Any, fields: Any) -> Any:
        """The greedy responses that were drawn with the sampled ones, or new ones."""
        drawn, self._drawn = self._drawn, None
        if drawn is not None:
            return drawn, None
        with _greedy_decoding(self.trainer):
            return trl_generate(prompt_ids, images, fields, 1)

    def __call__(self, inputs: list[dict[str, Any]], group_size: int) -> GreedyPass:
        """Rewards and lengths for every rank's responses.

        Reward functions see a call of their own with one row per prompt, and the dataset columns of that row. What TRL
        and the reward functions log meanwhile is put back, except the count of tokens, which were generated.
        """
        trainer, accelerator = self.trainer, self.trainer.accelerator
        shares = Shares(len(inputs), accelerator.num_processes, group_size)
        asked = [inputs[row] for row in shares.own_rows(accelerator.process_index)]
        prompts = _prompts(asked)
        with _logs_restored(trainer), _set(self, _scoring=True):
            _, ids, _, completions, *_ = trainer._generate(prompts)
            rewards = trainer._reward_border(trainer._calculate_rewards(asked, prompts, completions, ids), prompts)
        lengths = accelerator.gather(torch.tensor([len(row) for row in ids], device=rewards.device))
        place = torch.tensor(shares.places(), device=rewards.device)
        first = torch.arange(len(place), device=place.device) % group_size == 0
        return GreedyPass(rewards[place], lengths[place], first)


class _MostLikely(LogitsProcessor):
    """Allows the last rows of a batch their most likely token only."""

    def __init__(self, rows: int) -> None:
        self.rows, self.calls = rows, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        greedy = scores[-self.rows :]
        only = torch.full_like(greedy, float("-inf")).scatter(1, greedy.argmax(1, keepdim=True), 0.0)
        return torch.cat([scores[: -self.rows], only])


@contextmanager
def _most_likely_rows(model: Any, rows: int) -> Iterator[None]:
    """Let a model's `generate` sample all rows of a batch but the last ones, which take their most likely token.

    Raises RuntimeError where TRL generates with another object, so that these rows were sampled like the others.
    """
    rule, own = _MostLikely(rows), vars(model).get("generate")
    model.generate = functools.partial(model.generate, logits_processor=LogitsProcessorList([rule]))
    try:
        yield
    finally:
        del model.generate
        if own is not None:
            model.generate = own
    if not rule.calls:
        raise RuntimeError(
            "the greedy responses were sampled: TRL generated with another model than the one it unwraps. Choose "
            "another baseline than greedy, and report this with the versions of TRL and accelerate."
        )


def _prompts(rows: list[dict[str, Any]]) -> list[Any]:
    """Prompts as TRL passes them on to its engine: with the images of an image column in the messages."""
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
    """Always the most likely token; what else the user has set for generation stays."""
    if trainer.use_vllm:
        engine = trainer.vllm_generation
        # generation_kwargs would override the engine's own settings.
        kept = {k: v for k, v in engine.generation_kwargs.items() if k not in (*_VLLM, "n")}
        with _set(engine, generation_kwargs=kept, **_VLLM):
            yield
        return
    config = copy.deepcopy(trainer.generation_config)
    config.update(**_TRANSFORMERS)
    with _set(trainer, generation_config=config, generation_kwargs={**trainer.generation_kwargs, **_TRANSFORMERS}):
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
def _logs_restored(trainer: Any) -> Iterator[None]:
    """Keep greedy responses out of logs and tables, which are about the sampled ones."""
    mode = mode_of(trainer)
    kept = copy.deepcopy((trainer._pending_extra_logs, trainer._pending_metrics, trainer._metrics[mode]))
    try:
        yield
    finally:
        trainer._pending_extra_logs, trainer._pending_metrics, metrics = kept
        metrics["num_tokens"] = trainer._metrics[mode]["num_tokens"]
        trainer._metrics[mode] = metrics
