"""The model card that TRL and PEFT write: it cites the variant's paper and names the base model, not its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from grpo_variants.card import Card

FILE_NAME = "README.md"
# What TRL writes for a base model that lies in a local folder.
_UNNAMED = "[None](https://huggingface.co/None)"


def paper(card: Card) -> dict[str, str]:
    """What TRL's model card cites, in TRL's form: title and arXiv id of the variant's first paper, BibTeX of all."""
    references = card.variant.references
    found: dict[str, str] = {"citation": card.bibtex()} if references else {}
    linked = next((reference for reference in references if reference.arxiv), None)
    return found if linked is None else {"title": linked.title, "id": str(linked.arxiv), **found}


def write_objective(folder: str | Path, card: Card, base_model: str | None) -> None:
    """Add the objective's paragraph to TRL's model card, and the name of a base model that TRL does not name."""
    path = Path(folder) / FILE_NAME
    written = ModelCard.load(path)
    if base_model and _UNNAMED in written.text:
        written.data.base_model = name_of(base_model)
        written.text = written.text.replace(_UNNAMED, f"`{name_of(base_model)}`")
    written.text = f"{written.text.rstrip()}\n\n{card.paragraph()}"
    written.save(path)


def name_base_model(folder: str | Path) -> None:
    """Put a name where PEFT has written the path of a local base model: a model card is made to be shared."""
    path = Path(folder) / FILE_NAME
    if not path.exists():
        return
    written = ModelCard.load(path)
    base: Any = written.data.base_model
    if isinstance(base, str) and Path(base).is_dir():
        written.data.base_model = name_of(base)
        written.data.tags = [tag.replace(base, name_of(base)) for tag in written.data.tags or ()]
        written.save(path)


def name_of(model: str) -> str:
    """Name of a model: that of a folder, of what a folder of the hub's cache holds, or the hub id itself."""
    path = Path(model)
    if not path.is_dir():
        return model
    cached = next((part for part in path.resolve().parts if part.startswith("models--")), None)
    return path.resolve().name if cached is None else "/".join(cached.split("--")[1:])
