"""What a trainer's suite compares, kept as docs/parity/trl.json and verl.json, from which docs/parity.md is made.

A test that asks for the fixture `parity` lets it assert, and what it asserted becomes a row. The last test of a suite
holds the rows against the committed table; `make parity` writes the table anew. A row's verdict, numbers and tolerance
count; how far two equal results really were apart is written down as a power of ten, and never compared.
"""

import json
import math
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "parity"
WRITE = "--write-parity"
COMMAND = "make parity"
MEASURED = ("absolute", "relative")
_ROWS = pytest.StashKey[dict]()
_PARTIAL = pytest.StashKey[bool]()


def words(name, settings):
    """A built-in of a trainer with its settings: `loss cispo, clip_ratio_low=1.0`."""
    return ", ".join(part for part in (name, *(f"{key}={value!r}" for key, value in settings.items())) if part)


class Recorder:
    """Asserts, and keeps what was asserted as rows of a trainer's table."""

    def __init__(self, rows, test):
        """rows: the session's, by what they compare. test: the function that compares."""
        self._rows, self._test = rows, test

    def equal(self, spec, builtin, *, rtol, atol, **pairs):
        """Assert that each pair (ours, the trainer's) agrees; the keyword is the quantity: advantages, loss, gradient.

        spec: ours. builtin: the trainer's, with its settings; None where ours runs through the trainer's own code.
        """
        for quantity, (found, wanted) in pairs.items():
            found, wanted = (torch.as_tensor(value, dtype=torch.float64).detach() for value in (found, wanted))
            torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol, msg=lambda text, q=quantity: f"{q}: {text}")
            apart = (found - wanted).abs()
            measured = (apart.max(), (apart / wanted.abs().clamp(min=atol)).max())
            row = {"verdict": "equal", "rtol": rtol, "atol": atol}
            self._add(spec, builtin, quantity, row, dict(zip(MEASURED, map(float, measured), strict=True)))

    def differs(self, spec, builtin, what, *, here, there, cause, rel=1e-4, tol=1e-9):
        """Assert both numbers of a disagreement, each given as (found, expected), and that they are two.

        what: the quantity and its input. cause: why the trainer's number is another.
        """
        for found, expected in (here, there):
            assert _plain(found) == pytest.approx(expected, rel=rel, abs=tol, nan_ok=True), what
        assert here[1] != pytest.approx(there[1], rel=rel, abs=tol), f"{what}: the two agree"
        numbers = {"here": _text(here[1]), "there": _text(there[1])}
        self._add(spec, builtin, what, {"verdict": "differs", **numbers, "cause": cause}, {})

    def missing(self, builtin, cause):
        """Keep a built-in that has no counterpart here, and why; the test asserts that the package says so."""
        self._add("", builtin, "", {"verdict": "missing", "cause": cause}, {})

    def _add(self, spec, builtin, quantity, row, measured):
        key = (str(spec), builtin or "", quantity)
        old = self._rows.setdefault(key, {**row, **measured, "tests": []})
        assert {name: old[name] for name in row} == row, f"two tests compare {key} and find {old} and {row}"
        old |= {name: max(old[name], value) for name, value in measured.items()}
        if self._test not in old["tests"]:
            old["tests"].append(self._test)


def _plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _text(value):
    """A number as it is read: five significant digits."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return f"{value:.5g}" if math.isfinite(value) else str(value)


@pytest.fixture
def parity(request):
    """The recorder of this test."""
    path = request.path.relative_to(ROOT).as_posix()
    return Recorder(request.config.stash.setdefault(_ROWS, {}), f"{path}::{request.node.originalname}")


def pytest_addoption(parser):
    parser.addoption(WRITE, action="store_true", help="run what compares with a trainer, and write its table anew")


def pytest_deselected(items):
    if items:
        items[0].config.stash[_PARTIAL] = True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """The table's test comes last; where the table is written, nothing runs that adds no row."""
    last = [item for item in items if "compared" in item.fixturenames]
    others = [item for item in items if "compared" not in item.fixturenames]
    if config.getoption(WRITE):
        others = [item for item in others if "parity" in item.fixturenames]
    items[:] = others + last


@pytest.fixture
def compared(request):
    """The rows of this session, once every test that adds one has run."""
    folder = request.path.parent
    ran = {item.path for item in request.session.items}
    named = any("::" in argument for argument in request.config.args)
    users = {path for path in folder.glob("test_*.py") if re.search(r"[(,] ?parity[,)]", path.read_text("utf-8"))}
    whole = users <= ran and not named and _PARTIAL not in request.config.stash and not request.session.testsfailed
    return Table(folder.name, _listed(request.config.stash.get(_ROWS, {})), whole, request.config.getoption(WRITE))


class Table:
    """One trainer's rows as found, and the file that has them as committed."""

    def __init__(self, trainer, rows, whole, write):
        """whole: every test that adds a row has run and passed."""
        self.rows, self.trainer, self.whole, self.write = rows, trainer, whole, write
        self.path = FOLDER / f"{trainer}.json"

    def check(self):
        """Hold the rows against the committed ones, or write them; AssertionError with what to do."""
        if self.write:
            assert self.whole, "the table is written only where every test that compares has run and passed"
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(_dumped(self.trainer, self.rows), "utf-8")
        problems = differences(self.rows, self.committed(), self.whole)
        listed = "\n  ".join(problems)
        assert not problems, f"{self.path.relative_to(ROOT)} is not what the tests found; run `{COMMAND}`:\n  {listed}"

    def committed(self):
        return json.loads(self.path.read_text("utf-8"))["rows"] if self.path.exists() else []


def differences(found, committed, whole):
    """What a table lacks, what has changed, and, where every test has run, what is no longer compared: sentences."""
    found, committed = ({_key(row): _verdict(row) for row in rows} for rows in (found, committed))
    out = [f"not in the table: {_name(key)}" for key in found.keys() - committed.keys()]
    out += [
        f"changed: {_name(key)}: {committed[key]} in the table, now {found[key]}"
        for key in found.keys() & committed.keys()
        if found[key] != committed[key]
    ]
    if whole:
        out += [f"no test compares it any more: {_name(key)}" for key in committed.keys() - found.keys()]
    return sorted(out)


def _key(row):
    return row["spec"], row["builtin"], row["quantity"]


def _verdict(row):
    """All of a row but its key, how far the two were apart, and who compares."""
    return {
        name: value for name, value in row.items() if name not in ("spec", "builtin", "quantity", "tests", *MEASURED)
    }


def _name(key):
    spec, builtin, quantity = key
    return f"{quantity} of {spec} against {builtin or 'itself through the trainer'}"


def _listed(rows):
    """Rows in order of what they compare, with measured differences rounded up to a power of ten."""
    out = []
    for key, row in sorted(rows.items()):
        measured = {name: _decade(row[name]) for name in MEASURED if name in row}
        whole = {**dict(zip(("spec", "builtin", "quantity"), key, strict=True)), **row, **measured}
        out.append(whole | {"tests": sorted(row["tests"])})
    return out


def _decade(value):
    return "0" if value == 0 else f"1e{math.ceil(math.log10(value)):+d}"


def _dumped(trainer, rows):
    """JSON with a row a line, so that a change is a line."""
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    return f'{{"trainer": "{trainer}", "version": "{version(trainer)}", "rows": [\n{lines}\n]}}\n'
