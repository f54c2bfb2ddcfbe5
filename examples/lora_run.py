"""The parts of one LoRA run with a variant: model, prompts, trainer, progress display, held-out reward, curve."""

from __future__ import annotations

import csv
import signal
import textwrap
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpo_variants_trl as gvt
import torch
from datasets import Dataset
from grpo_variants_trl.config.refusals import check_supported
from huggingface_hub import ModelCard
from matplotlib.figure import Figure
from peft import LoraConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PrinterCallback,
    TrainerCallback,
    set_seed,
)

import grpo_variants as gv
from grpo_variants.advantage.credit import Process
from grpo_variants.card import FILE_NAME, Card

Reward = Callable[..., list[float]]
Curve = list[tuple[int, float]]
Answers = dict[str, list[str]]


@dataclass(frozen=True)
class Settings:
    """The numbers of a run, the folder that it writes into, and its model's name."""

    variant: str
    steps: int
    batch: int
    generations: int
    max_tokens: int
    learning_rate: float
    temperature: float
    rank: int
    seed: int
    output: Path
    model: str

    def config(self) -> gvt.VariantGRPOConfig:
        """The trainer's configuration; raises ValueError for what TRL cannot run, before a model is loaded."""
        if self.batch % self.generations:
            raise ValueError(f"--batch {self.batch} is not a multiple of --generations {self.generations}.")
        if isinstance(gv.get(self.variant).credit, Process):
            raise ValueError(f"{self.variant} needs step rewards: see examples/process_rewards.py.")
        on_gpu = torch.cuda.is_available()
        config = gvt.VariantGRPOConfig(
            loss_type=f"gv_{self.variant}",
            output_dir=str(self.output),
            max_steps=self.steps,
            per_device_train_batch_size=self.batch,
            per_device_eval_batch_size=self.batch,
            num_generations=self.generations,
            max_completion_length=self.max_tokens,
            learning_rate=self.learning_rate,
            lr_scheduler_type="constant",
            temperature=self.temperature,
            seed=self.seed,
            bf16=on_gpu,
            use_cpu=not on_gpu,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        check_supported(config.choice, config, {})
        return config

    def lora(self) -> LoraConfig:
        """LoRA on every linear layer but the head, which small models share with the embeddings.

        No dropout: the trainer samples in training mode, so dropout would change the policy that is sampled.
        """
        return LoraConfig(
            r=self.rank,
            lora_alpha=2 * self.rank,
            lora_dropout=0.0,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )


@dataclass
class Recorder:
    """A reward function that tells the reward which answers ended, and keeps the answers by prompt."""

    reward: Reward
    end_tokens: Collection[int]
    answers: Answers = field(default_factory=dict)

    @property
    def __name__(self) -> str:
        return self.reward.__name__

    def __call__(self, prompts: list[Any], completions: list[Any], completion_ids: list[Any], **columns: Any) -> Any:
        for prompt, completion in zip(prompts, completions, strict=True):
            self.answers.setdefault(last_message(prompt), []).append(last_message(completion))
        ended = [bool(ids) and ids[-1] in self.end_tokens for ids in completion_ids]
        return self.reward(
            prompts=prompts, completions=completions, completion_ids=completion_ids, ended=ended, **columns
        )


@dataclass(frozen=True)
class Result:
    """Held-out reward and answers at both ends, the reward of every step, and the files by what they are.

    after: None for a run that was stopped.
    """

    before: float
    after: float | None
    answers_before: Answers
    answers_after: Answers
    curve: Curve
    files: dict[str, Path]


class Display(TrainerCallback):
    """Shows the steps as they pass, with the time that they take, and keeps the reward of each."""

    def __init__(self, steps: int, console: Console) -> None:
        self.curve: Curve = []
        self.steps = steps
        self.every = max(1, steps // 20)
        self.started = time.monotonic()
        columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        self.progress = Progress(TextColumn("training"), *columns, console=console, transient=True)
        self.task = self.progress.add_task("training", total=steps)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
        if "reward" not in logs:
            return
        step = state.global_step
        self.curve.append((step, logs["reward"]))
        self.progress.update(self.task, completed=step)
        if step % self.every == 0:
            length = logs["completions/mean_length"]
            # A step in which no group has a signal scores no token, and so has no entropy.
            entropy = f"{logs['entropy']:.2f}" if "entropy" in logs else "-"
            rounds = logs.get("gv/filter/rounds")
            self.progress.console.print(
                f"step {step:>3}  reward {logs['reward']:.2f}  answer length {length:4.1f}  entropy {entropy:>4}"
                + ("" if rounds is None else f"  rounds of new prompts {rounds:.0f}")
                + f"  {self.times(step)}",
                soft_wrap=True,
            )

    def times(self, step: int) -> str:
        """Time since the start, and what the rest takes if its steps take as long."""
        elapsed = time.monotonic() - self.started
        return f"{_clock(elapsed)} elapsed, {_clock(elapsed / step * (self.steps - step))} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


class Stop(TrainerCallback):
    """Ctrl-C ends the run after the step that is under way; a second one ends it at once."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.asked = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= self.asked

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take Ctrl-C over while a run trains; one that was stopped then writes its files undisturbed."""
        signal.signal(signal.SIGINT, self._first)
        with suppress(KeyboardInterrupt):
            yield
        signal.signal(signal.SIGINT, signal.SIG_IGN if self.asked else signal.default_int_handler)

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Put back afterwards what Ctrl-C did before."""
        before = signal.getsignal(signal.SIGINT)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _first(self, number: int, frame: Any) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.console.print("Ctrl-C: the run ends after this step and keeps its adapter; once more ends it at once.")


def last_message(text: str | list[dict[str, str]]) -> str:
    """The text of a prompt or an answer, which TRL passes as a string or as messages."""
    return text if isinstance(text, str) else text[-1]["content"]


def load(model: str) -> tuple[PreTrainedModel, Any]:
    """A model and its tokenizer from a local folder or a hub id: bfloat16 on a GPU, float32 on a CPU."""
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    return AutoModelForCausalLM.from_pretrained(model, dtype=dtype), tokenizer


def end_tokens(model: PreTrainedModel, tokenizer: Any) -> Collection[int]:
    """Every token that ends an answer."""
    configured = model.generation_config.eos_token_id
    return {tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])} - {None}


def as_chat(rows: Dataset, tokenizer: Any) -> Dataset:
    """Plain-text prompts become a user's message where the model has a chat template."""
    if tokenizer.chat_template is None or not isinstance(rows[0]["prompt"], str):
        return rows
    return rows.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})


def run(
    settings: Settings,
    config: gvt.VariantGRPOConfig,
    loaded: tuple[PreTrainedModel, Any],
    rows: tuple[Dataset, Dataset],
    reward: Reward,
    console: Console,
) -> Result:
    """Measure, train, measure again, and write adapter, card and curve into the output folder.

    A run that Ctrl-C stops keeps what its steps have learnt.
    """
    trainer, recorder = prepared(settings, config, loaded, rows, reward)
    with console.status("Measuring the reward on held-out prompts"):
        before, answers_before = measure(trainer, recorder)
    console.print(f"held-out reward before training {before:.2f}")
    stop = Stop(console)
    with stop.put_back():
        curve = train(trainer, settings.steps, console, stop)
        if not curve:
            return Result(before, None, answers_before, {}, curve, {})
        trainer.save_model()
        after, answers_after = None, Answers()
        if not stop.asked:
            with console.status("Measuring the reward on held-out prompts again"), suppress(KeyboardInterrupt):
                after, answers_after = measure(trainer, recorder)
        result = Result(before, after, answers_before, answers_after, curve, {})
        return replace(result, files=save_results(result, settings, trainer.variant_card))


def prepared(
    settings: Settings,
    config: gvt.VariantGRPOConfig,
    loaded: tuple[PreTrainedModel, Any],
    rows: tuple[Dataset, Dataset],
    reward: Reward,
) -> tuple[gvt.VariantGRPOTrainer, Recorder]:
    """The trainer of a run, and the recorder of what its model answers."""
    set_seed(settings.seed)  # the trainer sets it only after the adapter has drawn its first weights
    model, tokenizer = loaded
    recorder = Recorder(reward, end_tokens(model, tokenizer))
    training, held_out = (as_chat(part, tokenizer) for part in rows)
    trainer = gvt.VariantGRPOTrainer(
        model=model,
        args=config,
        reward_funcs=recorder,
        train_dataset=training,
        eval_dataset=held_out,
        processing_class=tokenizer,
        peft_config=settings.lora(),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer, recorder


def measure(trainer: gvt.VariantGRPOTrainer, recorder: Recorder) -> tuple[float, Answers]:
    """Mean reward on the held-out prompts, sampled as in training, and the answers."""
    recorder.answers = {}
    reward = trainer.evaluate()["eval_reward"]
    return reward, dict(recorder.answers)


def train(trainer: gvt.VariantGRPOTrainer, steps: int, console: Console, stop: Stop) -> Curve:
    """Train under a progress display; returns the mean reward of every step."""
    display = Display(steps, console)
    trainer.add_callback(display)
    trainer.add_callback(stop)
    with display.progress, stop.listening():
        trainer.train()
    return display.curve


def save_results(result: Result, settings: Settings, card: Card) -> dict[str, Path]:
    """Write model card, curve and picture beside the adapter; returns every file by what it is."""
    folder = settings.output
    return {
        "adapter": folder / "adapter_model.safetensors",
        "model card": save_model_card(card, result, settings, folder / "README.md"),
        "variant card": folder / FILE_NAME,
        "reward curve": save_picture(result, settings, folder / "reward_curve.png"),
        "as numbers": save_table(result.curve, folder / "reward_curve.csv"),
    }


def save_model_card(card: Card, result: Result, settings: Settings, path: Path) -> Path:
    """Put the objective and the result into the model card that PEFT has written, whose header says what it adapts."""
    written = ModelCard.load(path)
    header, named = written.data, f"base_model:adapter:{written.data.base_model}"
    header.tags = [f"base_model:adapter:{settings.model}" if tag == named else tag for tag in header.tags or ()]
    header.base_model = settings.model
    after = "not measured, since the run was stopped" if result.after is None else f"{result.after:.2f} after"
    steps = f"Optimizer steps: {result.curve[-1][0]} of {settings.steps}."
    reward = f"Reward on held-out prompts: {result.before:.2f} before training, {after}."
    cited = f"## Citation\n\n```bibtex\n{card.bibtex()}\n```\n" if card.bibtex() else ""
    written.text = "\n\n".join(["# LoRA adapter", steps, reward, card.paragraph().rstrip(), cited])
    written.save(path)
    return path


def save_table(curve: Curve, path: Path) -> Path:
    """Write the mean reward of every step as CSV."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("step", "reward"), *curve])
    return path


def save_picture(result: Result, settings: Settings, path: Path) -> Path:
    """Draw the mean reward of every step, with the held-out reward at both ends."""
    steps, rewards = zip(*result.curve, strict=True)
    held_out = [(0, result.before), *([] if result.after is None else [(steps[-1], result.after)])]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, rewards, marker="o", label="training prompts")
    axes.plot(*zip(*held_out, strict=True), "s", color="black", label="held-out prompts")
    lowest = min(0.0, *rewards, *(reward for _, reward in held_out))
    axes.set(xlabel="optimizer step", ylabel="mean reward", ylim=(lowest, None))
    # A spec string has no spaces to break at but its commas.
    title = textwrap.fill(f"{settings.variant.replace(',', ', ')} on {settings.model}", 80, break_long_words=False)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    return path
