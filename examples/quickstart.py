"""Train a language model with LoRA and any variant, and compare its answers before and after.

Without options, SmolLM2-135M learns to answer in one word: two CPU cores, a few minutes, 5 GB of memory. On a GPU, give
it your own model, prompts and reward:

    python examples/quickstart.py --model Qwen/Qwen2.5-0.5B-Instruct --dataset prompts.jsonl
        --reward my_rewards.score --variant gspo --steps 200 --max-tokens 256 --learning-rate 1e-5

Needs: pip install ".[trl,report]" gguf
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import one_word
import smollm2
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from run_folder import folder_name

if TYPE_CHECKING:
    from datasets import Dataset
    from lora_run import Result, Reward, Settings

    from grpo_variants import Variant

FILES = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
LONGEST_ANSWER = 300
STOPPED = 130  # the exit status of a run that Ctrl-C has stopped
console = Console(highlight=False)
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    variant: Annotated[str, typer.Option(help="Name or spec string, such as 'grpo,kl=none'.")] = "dr_grpo",
    model: Annotated[str, typer.Option(help="Model folder or hub id.")] = smollm2.NAME,
    dataset: Annotated[str, typer.Option(help="File (jsonl, json, csv, parquet) or hub id.")] = one_word.NAME,
    reward: Annotated[str, typer.Option(help="module.function")] = "one_word.reward",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 14,
    batch: Annotated[int, typer.Option(min=1, help="Answers in a step.")] = 32,
    generations: Annotated[int, typer.Option(min=1, help="Answers to one prompt.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 12,
    learning_rate: Annotated[float, typer.Option(min=0, help="Constant over the run.")] = 1e-3,
    temperature: Annotated[float, typer.Option(min=0.01, help="Of sampling.")] = 1.0,
    rank: Annotated[int, typer.Option(min=1, help="Of the LoRA matrices.")] = 16,
    held_out: Annotated[int, typer.Option(min=1, help="Prompts of --dataset kept for the comparison.")] = 8,
    seed: Annotated[int, typer.Option(help="Of prompts, adapter and sampling.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Folder to write into; by default runs/ and the variant.")] = None,
) -> None:
    """Train a language model with LoRA and any variant, and compare its answers before and after.

    The defaults suit SmolLM2-135M on a CPU. A dataset needs a column 'prompt': text, or a list of chat messages.

    A reward is a function f(prompts, completions, **columns) that returns a list of numbers, as in TRL; every other
    column of the dataset arrives by its name, and 'ended' says which answers were not cut at --max-tokens.
    one_word.reward gives 1 for one written word; with a column 'answers', only if the word is among them.
    """
    set_environment(downloads=model != smollm2.NAME or dataset != one_word.NAME)
    chosen = checked_variant(variant)
    scorer = checked_reward(reward)
    check_source("--model", model, folder=True)
    check_source("--dataset", dataset, folder=False)
    folder = Path("runs") / folder_name(str(chosen)) if output is None else output
    check_output(folder, chosen)
    with console.status("Loading PyTorch, transformers and TRL"):
        import lora_run
        from grpo_variants_trl.checkpoint.model_card import name_of
    settings = lora_run.Settings(
        variant=str(chosen),
        steps=steps,
        batch=batch,
        generations=generations,
        max_tokens=max_tokens,
        learning_rate=learning_rate,
        temperature=temperature,
        rank=rank,
        seed=seed,
        output=folder,
        model=name_of(model),
    )
    config = checked_config(settings)
    rows = load_rows(dataset, held_out, seed)
    announce(chosen, settings, scorer)
    result = lora_run.run(settings, config, loaded_model(model), rows, scorer, console)
    report(result, chosen)
    if result.after is None:
        raise typer.Exit(STOPPED)


def check_output(folder: Path, variant: Variant) -> None:
    """Refuse a folder that holds another variant's adapter, which the run would overwrite."""
    from grpo_variants.card import read_card

    if not (folder / "adapter_model.safetensors").exists():
        return
    try:
        spec = (read_card(folder) or {}).get("spec", "another run")
    except ValueError as error:
        spec = f"a run whose card cannot be read ({error})"
    if spec != str(variant):
        raise typer.BadParameter(f"{folder} holds the adapter of {spec}; give another folder.", param_hint="--output")


def set_environment(downloads: bool) -> None:
    """What must be set before torch is imported: no output but the run's own, and threads that wait without spinning.

    Where other work shares the cores, spinning makes a step several times slower. Progress bars stay where something
    large may be fetched.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not downloads:
        os.environ.setdefault("TQDM_DISABLE", "1")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


def checked_variant(text: str) -> Variant:
    """The variant of a spec string, with or without the prefix that it has in TRL and verl."""
    import grpo_variants as gv

    try:
        return gv.get(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--variant") from error


def checked_reward(name: str) -> Reward:
    """The function that a dotted name stands for; modules of the current folder are found too."""
    module, _, function = name.rpartition(".")
    sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise typer.BadParameter(f"{name!r} cannot be imported: {error}", param_hint="--reward") from error
    if not callable(found):
        raise typer.BadParameter(f"{name!r} is not a function.", param_hint="--reward")
    return found


def check_source(flag: str, name: str, *, folder: bool) -> None:
    """Catch a path that does not exist, before it is looked for on the hub."""
    path = Path(name)
    if (path.is_absolute() or path.suffix in FILES or name.startswith(("./", "../", "~"))) and not path.exists():
        raise typer.BadParameter(f"{name} does not exist.", param_hint=flag)
    if path.exists() and path.is_dir() != folder:
        raise typer.BadParameter(f"{name} is {'not ' if folder else ''}a folder.", param_hint=flag)


def checked_config(settings: Settings) -> object:
    try:
        return settings.config()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def load_rows(source: str, held_out: int, seed: int) -> tuple[Dataset, Dataset]:
    """Rows to train on, and held-out rows."""
    from datasets import Dataset

    if source == one_word.NAME:
        train, test = one_word.splits()
        return Dataset.from_list(train), Dataset.from_list(test)
    rows = fetched_rows(source)
    if "prompt" not in rows.column_names:
        found = ", ".join(rows.column_names)
        raise typer.BadParameter(f"{source} has no column 'prompt'; it has {found}.", param_hint="--dataset")
    if len(rows) <= held_out:
        raise typer.BadParameter(
            f"{source} has {len(rows)} rows, too few to hold {held_out} out.", param_hint="--held-out"
        )
    parts = rows.train_test_split(test_size=held_out, seed=seed)
    return parts["train"], parts["test"]


def fetched_rows(source: str) -> Dataset:
    """The training split of a file or of a dataset on the hub."""
    from datasets import load_dataset

    kind = FILES.get(Path(source).suffix)
    try:
        return load_dataset(kind, data_files=source, split="train") if kind else load_dataset(source, split="train")
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{source} cannot be loaded: {error}", param_hint="--dataset") from error


def loaded_model(name: str) -> tuple[object, object]:
    """Model and tokenizer; the default one is downloaded and converted the first time."""
    import lora_run

    try:
        source = str(kept_smollm2()) if name == smollm2.NAME else name
        with console.status(f"Loading {name}"):
            return lora_run.load(source)
    except (OSError, RuntimeError) as error:
        raise typer.BadParameter(f"{name} cannot be loaded: {error}", param_hint="--model") from error


def kept_smollm2() -> Path:
    folder = smollm2.folder()
    if not folder.exists():
        with console.status(f"Downloading and converting {smollm2.NAME}: half a minute, the first time only"):
            smollm2.make(folder)
        console.print(f"{smollm2.NAME} is kept for the next run in {folder}", soft_wrap=True)
    return folder


def announce(variant: Variant, settings: Settings, reward: Reward) -> None:
    from grpo_variants.rollout.overlong import Mask

    console.print(
        f"{settings.steps} steps with {escape(str(variant))}: {settings.batch} answers each, "
        f"{settings.generations} to a prompt, at most {settings.max_tokens} tokens"
    )
    criterion = " ".join((inspect.getdoc(reward) or "").partition("\n\n")[0].split())
    if criterion:
        console.print(f"reward {reward.__module__}.{reward.__name__}: {escape(criterion)}")
    if isinstance(variant.overlong, Mask):
        console.print(
            f"[yellow]Note:[/] {variant.name} leaves answers that are cut at --max-tokens out of the loss. If most are "
            f"cut, it learns little: give them room, or --variant '{variant.name},overlong=keep'."
        )


def report(result: Result, variant: Variant) -> None:
    """Print what changed, where everything is, and what to try next."""
    if not result.curve:
        console.print("Stopped before the first step was done: no adapter was written.")
        return
    if result.after is None:
        console.print(f"\n[bold]Stopped after step {result.curve[-1][0]}; the adapter of these steps is kept.[/]\n")
    else:
        console.print(answers_table(result))
        console.print(f"\n[bold]Reward on held-out prompts: {result.before:.2f} before, {result.after:.2f} after[/]\n")
    for what, path in result.files.items():
        console.print(f"{what:<13}{path}", soft_wrap=True)
    console.print()
    scripts = Path(sys.executable).parent
    if scripts.is_relative_to(Path.cwd()):
        scripts = scripts.relative_to(Path.cwd())
    for what, command in (
        (f"What {variant.name} is:", f"grpo-variants show {variant.name}"),
        ("Another of the family:", f"python {sys.argv[0]} --variant rloo"),
    ):
        console.print(f"{what:<23}{scripts}/{command}", soft_wrap=True)


def answers_table(result: Result) -> Table:
    """One answer to each held-out prompt at both ends: the whole prompt, and the start of a long answer."""
    table = Table(title="One answer to each held-out prompt", title_justify="left", box=None)
    for column in ("prompt", "before", "after"):
        table.add_column(column, overflow="fold")
    for prompt, answers in result.answers_before.items():
        shown = (textwrap.shorten(text, LONGEST_ANSWER) for text in (answers[0], result.answers_after[prompt][0]))
        table.add_row(*map(escape, (prompt, *shown)))
    return table


if __name__ == "__main__":
    app()
