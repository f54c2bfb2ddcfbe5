"""The documentation that follows from the code: one page a variant, and tables inside pages that people write.

`python -m tools.docs.pages` writes them below the working directory. A page that a person writes asks for a
table with a pair of comments, `<!-- begin axes -->` and `<!-- end axes -->`; `BLOCKS` lists the tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path

from grpo_variants.axes import AXES, Axis, Stage
from grpo_variants.catalogue import CATALOGUE
from grpo_variants.numerics import CONVENTIONS
from grpo_variants.spelling import resolved_values
from grpo_variants.trainers import TRAINERS, verdicts_of
from grpo_variants.trainers.trl.limits import trl_refusals
from grpo_variants.trainers.verl.limits import advantage_refusals, loss_refusals
from grpo_variants.trainers.verl.translate import run_settings
from grpo_variants.variant import UNCONFIRMED, Reference, Variant
from tools.docs import paper_and_code
from tools.docs import parity as docs_parity
from tools.docs.markdown import table

COMMAND = "python -m tools.docs.pages"
COMPARED_WITH = "grpo"
THRESHOLDS = """from dataclasses import replace

variant = gv.get("{name}")
counts = replace(gv.Counts.of(step.mask), thresholds=variant.thresholds(step))"""
_PLACES: Mapping[Stage, str] = {"rollout": "sample", "advantage": "advantages", "objective": "loss"}
_PLACES_OF_KL: Mapping[Stage, str] = {"advantage": "reward", "objective": "loss"}
_RUNS_IN = "Every variant runs as functions. *Runs in* names the trainers that run it; the page says why not."
_VERDICTS_HEAD = ("trainer", "what of it equals this member")


def page(variant: Variant) -> str:
    """The page of one variant, in Markdown."""
    sections = (
        f"<!-- Written by `{COMMAND}` from the catalogue. -->\n# {variant.name}",
        variant.summary,
        *_doubt(variant),
        f"```math\n{variant.formula}\n```",
        "Worked by hand in `tests/support/handworked/variants.py`; evaluated by `tests/core/test_handworked.py`.",
        _usage(variant),
        *_note(variant),
        f"## What was confirmed where\n\n{variant.confirmed}",
        *_whole_batch(variant),
        *_random(variant),
        f"## Against {COMPARED_WITH}\n\n{_difference(variant)}",
        f"## Axes\n\n{_values_table(variant)}",
        f"## Trainers\n\n{table(_VERDICTS_HEAD, _verdicts(variant))}",
        "## References\n\n" + "\n".join(f"* {_link(reference)}" for reference in variant.references),
    )
    return "\n\n".join(sections) + "\n"


def index() -> str:
    """The page that lists the variants."""
    head = f"<!-- Written by `{COMMAND}` from the catalogue. -->\n# Variants"
    return f"{head}\n\n{_variants_table('')}\n"


def spec_against(variant: Variant, name: str = COMPARED_WITH) -> str:
    """The spec string that turns another catalogue entry into this variant."""
    return str(replace(variant, name=name))


def generated(root: Path) -> dict[Path, str]:
    """Every file that is written, wholly or in part, below the root of the project: path -> text."""
    folder = root / "docs" / "variants"
    texts = {folder / f"{variant.name}.md": page(variant) for variant in CATALOGUE} | {folder / "index.md": index()}
    parity = root / "docs" / "parity.md"
    texts[parity] = docs_parity.page(root / "docs" / "parity", COMMAND)
    by_hand = [root / "README.md", *(path for path in sorted((root / "docs").glob("*.md")) if path != parity)]
    return texts | {path: fill(path.read_text("utf-8"), path.name) for path in by_hand if path.exists()}


def fill(text: str, where: str) -> str:
    """A text with each block between its begin and end comments replaced; raises ValueError for an unknown block."""

    def block(match: re.Match[str]) -> str:
        if match["name"] not in BLOCKS:
            raise ValueError(f"{where}: no block is named {match['name']!r}; known: {', '.join(BLOCKS)}.")
        return f"{match['begin']}\n{BLOCKS[match['name']](where)}\n{match['end']}"

    return re.sub(r"(?s)(?P<begin><!-- begin (?P<name>\w+) -->).*?(?P<end><!-- end (?P=name) -->)", block, text)


def main(root: Path = Path()) -> None:
    """Write what has changed and remove pages of variants that are gone."""
    texts = generated(root)
    for path, text in texts.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            print(f"wrote {path}")
    for path in set((root / "docs" / "variants").glob("*.md")) - texts.keys():
        path.unlink()
        print(f"removed {path}")


def _verdicts(variant: Variant) -> list[tuple[str, str]]:
    """Each trainer with its version, and its verdict."""
    trainers = {name: trainer for name, trainer in TRAINERS.items() if trainer.adapter is not None}
    return [
        (f"{trainers[name].title} {trainers[name].adapter.tested}", verdict)  # type: ignore[union-attr]
        for name, verdict in verdicts_of(variant).items()
    ]


def _usage(variant: Variant) -> str:
    name, refused = variant.name, _refused(variant)
    settings = f"`grpo-variants translate {name} --to verl` prints its settings."
    if not (*advantage_refusals(variant), *loss_refusals(variant)):
        loss = "`actor_rollout_ref.actor.policy_loss.loss_mode`"
        settings = f"`gv_{name}` as `algorithm.adv_estimator` and as {loss}; {settings}"
    runs = {"TRL": f"`loss_type: gv_{name}`.", "verl": settings}
    lines = "\n".join(
        f"* {trainer}: {f'refused. {refused[trainer]}' if trainer in refused else runs[trainer]}" for trainer in runs
    )
    return f'```python\nimport grpo_variants as gv\n\nvariant = gv.get("{name}")\n```\n\n{lines}'


def _refused(variant: Variant) -> dict[str, str]:
    """The trainers that cannot run a variant as registered, and why."""
    refused = {"TRL": " ".join(trl_refusals(variant))}
    try:
        run_settings(variant)
    except ValueError as error:
        refused["verl"] = str(error).removeprefix(f"{variant.name}: ")
    return {trainer: reason for trainer, reason in refused.items() if reason}


def _doubt(variant: Variant) -> tuple[str, ...]:
    return (f"**In `contrib`**: {UNCONFIRMED}. {variant.unconfirmed}",) if variant.contrib else ()


def _whole_batch(variant: Variant) -> tuple[str, ...]:
    """What of a variant spans the batch, what each trainer takes, and how a loop of one's own hands it in."""
    if not variant.whole_batch:
        return ()
    names = ", ".join(f"`{name}`" for name in variant.threshold_names)
    verb = "belongs" if len(variant.threshold_names) == 1 else "belong"
    trainers = " ".join(text for trainer, text in _STATISTIC_IN.items() if trainer not in _refused(variant))
    return (
        f"## A statistic of the whole batch\n\nThe formula's {names} {verb} to the optimizer step. {trainers} "
        "In a loop of your own, where the step's log-probabilities are at hand before the first backward pass, hand "
        "them in with the counts:",
        f"```python\n{THRESHOLDS.format(name=variant.name)}\n```",
        f"`step` is a `gv.Tokens` of the whole step{_with_draws(variant)}; every micro-batch then runs "
        "`gv.policy_loss(variant, micro_batch, counts)`. Sorting and counting stay on the device: nothing waits for "
        "the trainer.",
    )


_STATISTIC_IN: Mapping[str, str] = {
    "TRL": (
        "In TRL it is the whole step's, under any split into micro-batches and processes: one forward pass without "
        "gradient over the step's responses comes before its first loss."
    ),
    "verl": (
        "In verl each micro-batch takes its own, since a policy loss sees one micro-batch of one worker. It is the "
        "step's on one worker with ppo_micro_batch_size_per_gpu equal to ppo_mini_batch_size times rollout.n."
    ),
}


def _with_draws(variant: Variant) -> str:
    return ", with `draws` of which each micro-batch has its rows" if variant.surrogate.draws else ""


def _random(variant: Variant) -> tuple[str, ...]:
    if not variant.surrogate.draws:
        return ()
    return (
        "## Random numbers\n\nDraws at random, once per loss: pass `generator=` to `gv.policy_loss`, or the numbers as "
        "`gv.Tokens(draws=...)`, [B, T] in [0, 1); with neither it draws from torch's global generator. In TRL and in "
        "verl each rank draws from its own, so that runs differ with the number of ranks.",
    )


def _note(variant: Variant) -> tuple[str, ...]:
    parts = [text for text in (variant.note, paper_and_code.rows_of(variant.name)) if text]
    return ("## Where the sources differ", *parts) if parts else ()


def _difference(variant: Variant) -> str:
    if variant.name == COMPARED_WITH:
        return "The member that the others are compared with."
    return f"Equivalent spec, starting from `{COMPARED_WITH}`: `{spec_against(variant)}`"


def _values_table(variant: Variant) -> str:
    values = resolved_values(variant)
    rows = []
    for axis, entry in AXES.items():
        own = (f"{key.removeprefix(axis + '.')}={_text(v)}" for key, v in values.items() if key.startswith(f"{axis}."))
        rows.append((axis, ", ".join(entry.stages), f"`{values[axis]}`", ", ".join(f"`{field}`" for field in own)))
    return table(("axis", "acts on", "choice", "fields"), rows)


def _variants_table(where: str) -> str:
    """Names link to the variants' pages, from the project's root, from docs/ or from the pages' own folder."""
    folder = {"": "", "README.md": "docs/variants/"}.get(where, "variants/")
    rows = {
        variant: (
            f"[{variant.name}]({folder}{variant.name}.md)",
            variant.summary,
            ", ".join(_short_link(reference) for reference in variant.references),
            ", ".join(trainer for trainer in ("TRL", "verl") if trainer not in _refused(variant)) or "-",
        )
        for variant in CATALOGUE
    }
    head = ("variant", "what it is", "defined in", "runs in")
    main, contrib = (table(head, (row for v, row in rows.items() if v.contrib is kind)) for kind in (False, True))
    return f"{_RUNS_IN}\n\n{main}\n\nIn `contrib`: {UNCONFIRMED}; the page says which.\n\n{contrib}"


def _step_drawing(where: str) -> str:
    """One training step, and the axes that act at each of its three places."""
    boxes = "\n".join(
        f'  {end}["<b>{does}</b><br/>{"<br/>".join(_at(end, axis) for axis, e in AXES.items() if _acts(e, end))}"]'
        for end, does in _PLACES.items()
    )
    return (
        f"```mermaid\nflowchart LR\n{boxes}\n"
        "  prompts --> rollout --> rewards --> advantage --> objective --> update[optimizer step]\n"
        "  rewards -. groups without signal: new prompts .-> rollout\n```"
    )


def _acts(axis: Axis, stage: Stage) -> bool:
    """Whether an axis chooses something at a place; one that acts at all of them (conventions) chooses nothing."""
    return stage in axis.stages and len(axis.stages) < len(_PLACES)


def _at(stage: Stage, axis: str) -> str:
    return axis if len(AXES[axis].stages) == 1 else f"{axis} in the {_PLACES_OF_KL[stage]}"


def _axes_table(where: str) -> str:
    rows = (
        (axis, ", ".join(entry.stages), " · ".join(f"`{_choice(word, part)}`" for word, part in entry.choices.items()))
        for axis, entry in AXES.items()
    )
    return table(("axis", "acts on", "choices, with fields and defaults"), rows)


def _choice(word: str, part: type | str | None) -> str:
    """A choice as it is documented: its word, and its fields with their defaults in parentheses."""
    if not isinstance(part, type) or not is_dataclass(part) or not fields(part):
        return word
    given = (f.name if f.default is MISSING else f"{f.name}={_text(f.default)}" for f in fields(part))
    return f"{word}({', '.join(given)})"


def _conventions_table(where: str) -> str:
    rows = (
        (
            name,
            entry.axis,
            ", ".join(entry.choices) or "any",
            ", ".join(entry.ratios) or "any",
            ", ".join(f"`{field}={_text(value)}`" for field, value in entry.values.items()),
        )
        for name, entries in CONVENTIONS.items()
        for entry in entries
    )
    return table(("conventions", "axis", "choice", "under ratio", "sets"), rows)


BLOCKS: Mapping[str, Callable[[str], str]] = {
    "variants": _variants_table,
    "step": _step_drawing,
    "axes": _axes_table,
    "conventions": _conventions_table,
    "paper_and_code": paper_and_code.every_row,
}


def _link(reference: Reference) -> str:
    return f"[{reference}](https://arxiv.org/abs/{reference.arxiv})" if reference.arxiv else str(reference)


def _short_link(reference: Reference) -> str:
    label = f"arXiv:{reference.arxiv}" if reference.arxiv else f"{reference.title} ({reference.year})"
    return f"[{label}](https://arxiv.org/abs/{reference.arxiv})" if reference.arxiv else label


def _text(value: object) -> str:
    return "none" if value is None else str(value)


if __name__ == "__main__":
    main()
