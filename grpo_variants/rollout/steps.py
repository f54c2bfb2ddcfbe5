"""Steps of a response: where they end in its text, which token that is, and rewards for them."""

from __future__ import annotations

import inspect
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from typing import Any

from grpo_variants.tensors.checks import unknown

Span = tuple[int, int]

# A step ends where a match ends; a match without width cuts in front of what follows it.
SEPARATORS: Mapping[str, re.Pattern[str]] = {
    "lines": re.compile(r"\n"),
    "paragraphs": re.compile(r"\n[^\S\n]*\n"),
    "headings": re.compile(r"(?im)(?=^[^\w\n]{0,6}step[^\S\n]+\d+[^\w\n]{0,3}[:.)])"),
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """The reward of one step of a response, and where the step ends: at a token or at a character.

    end: index of the step's last token among the response's tokens, from 0.
    text: (start, end) of the step in the response's text, as in `text[start:end]`; it ends at the token that holds its
        last character, and at the response's last token (EOS included) where only white space is left of the text.
    reward: a number; NaN or None takes the whole response out of the group's statistics and of the loss.
    """

    reward: float | None
    end: int | None = None
    text: Span | None = None

    def __post_init__(self) -> None:
        """Check that there is one position."""
        if (self.end is None) == (self.text is None):
            raise ValueError(f"{self} needs end= (a token's index) or text= (start and end in the text), one of them.")
        if self.end is not None and not _is_index(self.end):
            raise ValueError(f"end={self.end!r} is no token's index; allowed: 0 up to the response's last token.")
        if self.text is not None and not _is_span(self.text):
            raise ValueError(f"text={self.text!r} is no span; allowed: (start, end) with 0 <= start <= end.")

    @classmethod
    def of(cls, value: Any) -> Step:
        """A step, or (token index, reward), or ((start, end), reward); raises ValueError for anything else."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise ValueError(
                f"{value!r} is no step; allowed: Step(...), (token index, reward), ((start, end), reward)."
            )
        position, reward = value
        if isinstance(position, (tuple, list)):
            return cls(text=tuple(position), reward=reward)
        return cls(end=position, reward=reward)


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_span(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_index, value)) and value[0] <= value[1]


def step_spans(text: str, at: str | re.Pattern[str] = "lines") -> list[Span]:
    r"""Where the steps of a text lie: spans that cover it from its start to its end, at least one.

    at: "lines", "paragraphs" (blank lines), "headings" ("Step 1:", "step 2.") or a compiled pattern. A step ends where
    a match ends, so a separator belongs to the step before it; `re.compile(r"(?=- )")` cuts in front of a match. White
    space alone is no step: it belongs to the step before it, at the start of the text to the step after it.
    Raises ValueError for a name that is not known.
    """
    cuts = {match.end() for match in _pattern(at).finditer(text)} - {0, len(text)}
    spans: list[Span] = []
    for start, end in pairwise([0, *sorted(cuts), len(text)]):
        joins = bool(spans) and (not text[start:end].strip() or not text[slice(*spans[-1])].strip())
        spans[-1:] = [(spans[-1][0], end)] if joins else [*spans[-1:], (start, end)]
    return spans


def _pattern(at: str | re.Pattern[str]) -> re.Pattern[str]:
    if isinstance(at, re.Pattern):
        return at
    if at not in SEPARATORS:
        raise ValueError(unknown(f"at={at!r} is unknown", str(at), [*SEPARATORS, "re.compile(...)"]))
    return SEPARATORS[at]


def step_rewards(at: str | re.Pattern[str] = "lines") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that makes a reward function of a function that scores steps.

    The function takes `steps`, a list of texts for each response, and whatever else a reward function takes; it returns
    a list of numbers for each response, one per step, or None for a response that it does not score. It may be async.
    at: as in `step_spans`.
    Raises ValueError where the numbers are not one per step, for a completion that is not one text, and for a column of
    the data set that is named `steps` too.
    """
    _pattern(at)

    def decorate(function: Callable[..., Any]) -> Any:
        name = getattr(function, "__name__", type(function).__name__)

        @wraps(function)
        def score(completions: Sequence[Any], **columns: Any) -> list[list[Step] | None]:
            check_columns(name, columns)
            spans, steps = _split(completions, at)
            return _paired(name, spans, function(steps=steps, completions=completions, **columns))

        @wraps(function)
        async def score_later(completions: Sequence[Any], **columns: Any) -> list[list[Step] | None]:
            check_columns(name, columns)
            spans, steps = _split(completions, at)
            return _paired(name, spans, await function(steps=steps, completions=completions, **columns))

        decorated: Any = score_later if inspect.iscoroutinefunction(function) else score
        decorated.takes_steps = True
        return decorated

    return decorate


def check_columns(name: str, columns: Iterable[str]) -> None:
    """Raise ValueError for a column that would take the place of the steps which a function is given."""
    if "steps" in columns:
        raise ValueError(
            f"the data set has a column 'steps', and {name} is given the steps of its responses under that name by "
            "@step_rewards. Rename the column, for example with dataset.rename_column('steps', 'known_steps')."
        )


def _split(completions: Sequence[Any], at: str | re.Pattern[str]) -> tuple[list[list[Span]], list[list[str]]]:
    texts = [completion_text(completion) for completion in completions]
    spans = [step_spans(text, at) for text in texts]
    return spans, [[text[a:b].strip() for a, b in own] for text, own in zip(texts, spans, strict=True)]


def _paired(name: str, spans: list[list[Span]], rewards: Any) -> list[list[Step] | None]:
    if len(rewards) != len(spans):
        raise ValueError(f"{name} returned {len(rewards)} lists for {len(spans)} responses; allowed: one per response.")
    return [_scored(f"{name}, response {i}", own, rewards[i]) for i, own in enumerate(spans)]


def _scored(where: str, spans: list[Span], rewards: Any) -> list[Step] | None:
    if rewards is None:
        return None
    if len(rewards) != len(spans):
        raise ValueError(f"{where}: {len(rewards)} rewards for {len(spans)} steps; allowed: one per step.")
    return [Step(text=span, reward=reward) for span, reward in zip(spans, rewards, strict=True)]


def completion_text(completion: Any) -> str:
    """Text of a completion, or of the one message of a conversational one; raises ValueError for several messages."""
    if isinstance(completion, str):
        return completion
    contents = [message.get("content") for message in completion]
    if len(contents) != 1 or not isinstance(contents[0], str):
        raise ValueError(
            f"a completion of {len(contents)} messages is not one text; give each step's last token (end=) instead."
        )
    return contents[0]


def step_ends(steps: Sequence[Any], ids: Sequence[int], text: Callable[[], str], tokenizer: Any) -> list[int]:
    """Token at which each step of a response ends.

    steps: `Step`s, or what `Step.of` takes. ids: the response's tokens. text: gives its text, asked for only where a
    step has a span. Raises ValueError for positions outside the response or out of order, and for no steps at all.
    """
    steps = [Step.of(step) for step in steps]
    if not steps:
        raise ValueError("no steps; give one at least, or None for a response that is not scored.")
    by_token = [step.end is not None for step in steps]
    if any(by_token) and not all(by_token):
        raise ValueError("some steps have end= and some text=; give the same for all steps of a response.")
    positions = [step.text[1] if step.text else step.end for step in steps]
    if by_token[0]:
        _check_order(positions, first=0, last=max(len(ids) - 1, 0), of=f"response of {len(ids)} tokens")
        return positions
    whole = text()
    _check_order(positions, first=min(1, len(whole)), last=len(whole), of=f"text of {len(whole)} characters")
    return token_ends(tokenizer, ids, whole, positions)


def _check_order(positions: Sequence[int], *, first: int, last: int, of: str) -> None:
    for before, after in pairwise(positions):
        if after <= before:
            raise ValueError(f"a step that ends at {after} follows one that ends at {before}; give them in order.")
    for position in (positions[0], positions[-1]):
        if not first <= position <= last:
            raise ValueError(f"a step ends at {position}, outside a {of}; allowed: {first} to {last}.")


def token_ends(tokenizer: Any, ids: Sequence[int], text: str, ends: Sequence[int]) -> list[int]:
    """The token at which each prefix `text[:end]` is complete, for increasing ends: exact for any tokenizer.

    A character of several tokens is complete with the last of them. Where only white space is left after an end, the
    step ends with the response: at its last token, EOS included. A text that is part of what the tokens decode to (a
    message that was stripped) is found in it. A fast tokenizer's offsets are used where it writes the text in the same
    tokens; otherwise prefixes are decoded.
    Raises ValueError for a text that the tokens do not decode to.
    """
    ids = list(ids)
    decoded = tokenizer.decode(ids, skip_special_tokens=True)
    start = decoded.find(text)
    if start < 0:
        raise ValueError("its tokens do not decode to its text; give each step's last token (end=) instead.")
    wanted = [start + end for end in ends if text[end:].strip()]
    found = _by_offsets(tokenizer, ids, decoded, wanted)
    if found is None:
        found = _by_prefixes(tokenizer, ids, decoded, wanted)
    return found + [max(len(ids) - 1, 0)] * (len(ends) - len(wanted))


def _by_offsets(tokenizer: Any, ids: list[int], text: str, ends: list[int]) -> list[int] | None:
    """By the tokenizer's own offsets; None where it would write the text in other tokens or leaves characters out."""
    if not getattr(tokenizer, "is_fast", False):
        return None
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    kept = [place for place, token in enumerate(ids) if token not in special]
    written = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets = written["offset_mapping"]
    if written["input_ids"] != [ids[place] for place in kept] or not _covers(offsets, len(text)):
        return None
    starts = [start for start, _ in offsets]
    return [kept[bisect_left(starts, end) - 1] for end in ends]


def _covers(offsets: list[Span], length: int) -> bool:
    """Whether offsets leave no character out: some tokenizers report words without the space in front of them."""
    joined = all(a[0] <= b[0] <= a[1] for a, b in pairwise(offsets))
    return bool(offsets) and joined and offsets[0][0] == 0 and offsets[-1][1] == length


def _by_prefixes(tokenizer: Any, ids: list[int], text: str, ends: list[int]) -> list[int]:
    """By decoding prefixes: the shortest one that starts with the wanted text, by bisection."""
    places: list[int] = []
    for end in ends:
        first = places[-1] if places else 0

        def complete(place: int, end: int = end) -> bool:
            return bool(tokenizer.decode(ids[: place + 1], skip_special_tokens=True).startswith(text[:end]))

        places.append(first + bisect_left(range(first, len(ids) - 1), True, key=complete))
    return places
