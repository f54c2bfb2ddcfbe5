"""Files that a run leaves behind: written whole or not at all, and read with one sentence for each fault."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

# Format 1 is version 0.1.0's: without a checksum, and in a trainer's state without the number itself.
FORMAT = 2


class FileError(ValueError):
    """A file that cannot be written or used; the message is one sentence with its path and what to do."""


class _Fault(Exception):
    """What is wrong with a file, and what else may be done about it than the caller proposes."""

    def __init__(self, text: str, first: str = "") -> None:
        super().__init__(text)
        self.first = first


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file beside `path` and put it in its place once it is whole and on the disk.

    A block that fails leaves what was there before. Raises FileError where the system refuses, as a full disk does.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise FileError(
            f"{path} cannot be written ({error.strerror or error}): free space on that disk, or choose a folder that "
            "can be written to."
        ) from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def write_json(path: str | Path, content: Mapping[str, Any]) -> Path:
    """Write plain values as JSON with a format number and a checksum, whole or not at all; returns the path.

    Raises ValueError for a number that JSON does not have (NaN, infinity), FileError where the system refuses.
    """
    path = Path(path)
    wrong = _not_finite(content)
    if wrong is not None:
        raise ValueError(f"{path} holds finite numbers only, and {wrong}.")
    whole = {"format": FORMAT, **content}
    text = json.dumps({**whole, "checksum": _checksum(whole)}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with replacing(path) as handle:
        # Half of a surrogate pair is no UTF-8; its backslash escape is what JSON writes for it.
        handle.write(text.encode("utf-8", "backslashreplace"))
    return path


def read_json(path: str | Path, remedy: str) -> dict[str, Any]:
    """What `write_json` was given, from a file of this format or of version 0.1.0's.

    remedy: what to do where the file cannot be used, the end of the sentence that FileError says.
    """
    try:
        content = _parsed(Path(path))
        number = content.pop("format", 1)
        _check_format(number)
        if number > 1:
            _check_sum(content.pop("checksum", None), {"format": number, **content})
    except _Fault as fault:
        raise FileError(f"{path} {fault}: {fault.first}{remedy}.") from fault.__cause__
    return content


def _parsed(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes().decode("utf-8"), parse_constant=_finite, parse_float=_finite)
    except OSError as error:
        raise _Fault(f"cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise _Fault(f"is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _Fault(f"is truncated or damaged, since it is not valid JSON ({where})") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets without an end
        raise _Fault("is damaged, since it is not valid JSON") from error
    if not isinstance(content, dict):
        raise _Fault(f"holds a {type(content).__name__} where an object of names and values is expected")
    return content


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise _Fault(f"holds {word}, which is no number in JSON")
    return value


def _check_format(number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise _Fault(f"has format {number!r} where a whole number from 1 to {FORMAT} is expected")
    if number > FORMAT:
        text = f"has format {number}, which a newer grpo-variants wrote and this one (format {FORMAT}) does not know"
        raise _Fault(text, "upgrade grpo-variants, or ")


def _check_sum(given: object, content: Mapping[str, Any]) -> None:
    if given is None:
        raise _Fault("has no checksum, so it was changed by hand or damaged")
    if given != _checksum(content):
        raise _Fault("does not agree with its checksum, so it was changed by hand or damaged")


def _checksum(content: Mapping[str, Any]) -> str:
    """Of the values and not of the text, so that a formatter does not change it."""
    plain = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _not_finite(content: Any, where: str = "") -> str | None:
    """The first number that is not finite, with the names that lead to it, or None."""
    if isinstance(content, float):
        return None if math.isfinite(content) else f"{where} is {content}"
    if isinstance(content, Mapping):
        parts = [(f"{where}.{name}".lstrip("."), value) for name, value in content.items()]
    elif isinstance(content, (list, tuple)):
        parts = [(f"{where}[{place}]", value) for place, value in enumerate(content)]
    else:
        return None
    found = (_not_finite(value, name) for name, value in parts)
    return next((text for text in found if text is not None), None)
