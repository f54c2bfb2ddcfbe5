"""How benchmarks are judged: the worst pair, medians of ratios, margins, and bars that nothing was measured for."""

import json
from pathlib import Path

import torch

from benchmarks import measure
from benchmarks.__main__ import merged
from benchmarks.bars import Bar, bars
from benchmarks.machine import environment
from benchmarks.measure import interleaved
from benchmarks.report import END, START, _axis, judge, page, put, table

RESULT = {
    "case": "loss",
    "size": "2x3",
    "axes": ["batch size", "length"],
    "unit": "[B, T]",
    "contenders": {
        "host": {"seconds": [8.0, 4.0, 9.0], "peak": 10.0, "syncs": 3, "kernels": 9},
        "ours": {"seconds": [2.0, 2.0, 3.0], "peak": 2.0, "syncs": 0, "kernels": 4},
    },
}


def bar(**given):
    return Bar(**{"id": "P", "sentence": "s", "case": "loss", "size": "2x3", "of": "seconds"} | given)


def test_a_ratio_is_the_median_over_the_rounds_and_the_worst_pair_counts():
    """8/2, 4/2 and 9/3: median 3, where the ratio of the medians would be 4; host over host is 1."""
    assert bar(pairs=(("host", "ours"),), at_least=3).value(RESULT) == 3
    assert bar(pairs=(("host", "ours"), ("host", "host")), at_least=3).value(RESULT) == 1
    assert bar(pairs=(("host", "ours"), ("host", "host")), at_most=3).value(RESULT) == 3
    assert bar(pairs=(("ours",),), of="peak", at_most=2).value(RESULT) == 2
    assert bar(pairs=(("ours", "host"),), of="peak", at_most=2).value(RESULT) == 0.2


def test_a_quick_run_may_miss_by_the_margin_and_a_full_one_by_nothing():
    """With a margin of a quarter at least 4 is at least 3, and at most 2.4 is at most 3."""
    least = bar(pairs=(("host", "ours"),), at_least=4, margin=0.25)
    most = bar(pairs=(("host", "ours"),), at_most=2.4, margin=0.25)
    assert [least.holds(3, quick=True), least.holds(2.9, quick=True), least.holds(3, quick=False)] == [
        True,
        False,
        False,
    ]
    assert [most.holds(3, quick=True), most.holds(3.1, quick=True), most.holds(3, quick=False)] == [True, False, False]


def test_a_quick_run_says_where_only_the_margin_holds():
    near = bar(pairs=(("host", "ours"),), at_least=4, margin=0.25)
    lines, failed = judge([near], [RESULT], quick=True)
    assert not failed
    assert lines[0].startswith("P               in margin    3, at least 4")
    assert judge([near], [RESULT], quick=False)[1]


def test_a_bar_for_full_runs_fails_no_quick_one():
    failing = bar(pairs=(("host", "ours"),), at_least=99, quick=False)
    lines, failed = judge([failing], [RESULT], quick=True)
    assert not failed
    assert "full only    3, at least 99" in lines[0]
    assert judge([failing], [RESULT], quick=False)[1]


def test_a_bar_without_a_result_fails_nothing_and_is_named():
    lines, failed = judge([bar(pairs=(("host", "ours"),), size="9x9", at_least=99)], [RESULT], quick=False)
    assert not failed
    assert "not measured" in lines[0]
    lines, failed = judge([bar(pairs=(("host", "ours"),), at_least=99)], [RESULT], quick=False)
    assert failed
    assert "FAILS        3, at least 99: s" in lines[0]


def test_every_bar_says_one_thing():
    for found in bars():
        assert (found.at_least is None) != (found.at_most is None), found.id
        assert found.of in ("seconds", "peak", "syncs", "kernels")
    assert len({found.id for found in bars()}) == len(bars())


def test_the_table_has_times_over_the_first_contenders():
    assert table([RESULT]).splitlines()[3] == "| loss | 2x3 | ours | 2e+03 | 3x | 2 [B, T] | 4 | 0 |"


def test_the_page_has_bars_and_cases():
    holding, missed = bar(pairs=(("host", "ours"),), at_least=2, aim=4), bar(pairs=(("ours",),), of="peak", at_most=1)
    lines = page([RESULT], {"CPU": "a fast one", "torch": "2.13"}, [holding, missed]).splitlines()
    assert lines[0] == "Where: CPU a fast one, torch 2.13."
    assert "| P | s | at least 2, aim 4 | 3 | holds |" in lines
    assert "| P | s | at most 1 | 2 | fails |" in lines
    assert (
        lines[lines.index("### Loss") + 2]
        == "| batch size x length | contender | ms | to the first | peak | kernels | syncs |"
    )
    assert lines[-1] == "| 2x3 | ours | 2e+03 | 3x | 2 [B, T] | 4 | 0 |"


def test_the_page_goes_between_the_marks(tmp_path):
    file = tmp_path / "page.md"
    put(file, "first\n")
    file.write_text(f"before\n{file.read_text()}after\n")
    put(file, "second\n")
    assert file.read_text() == f"before\n{START}\n\nsecond\n\n{END}\nafter\n"


def test_results_of_two_environments_are_in_the_order_of_the_cases(tmp_path):
    """An earlier result of the same case and size gives way; one of a case that is no more is left out."""
    file = tmp_path / "results.json"
    found = [{"case": case, "size": "1x1", "unit": "MiB", "contenders": {}} for case in ("TRL step", "a case that was")]
    merged(file, found)
    fresh = [
        {"case": case, "size": "1x1", "unit": "MiB", "contenders": {"a": {}}} for case in ("advantages", "TRL step")
    ]
    both = merged(file, fresh)
    assert both["results"] == fresh
    assert both == json.loads(file.read_text())


def test_the_performance_page_shows_the_recorded_run():
    docs = Path(__file__).parents[2] / "docs"
    recorded = json.loads((docs / "performance.json").read_text())
    shown = (docs / "performance.md").read_text().partition(START)[2].partition(END)[0]
    assert shown.strip() == page(recorded["results"], recorded["environment"], bars()).strip()
    assert {bar.case for bar in bars() if not bar.case.startswith("small")} <= {
        result["case"] for result in recorded["results"]
    }


def test_everybody_has_a_turn_in_every_round_in_a_changing_order(monkeypatch):
    """What a run takes is its number, so that rounds of two turns can be read off the order of the calls."""
    calls = []
    monkeypatch.setattr(measure, "_repeats", lambda run: 1)
    monkeypatch.setattr(measure, "_seconds", lambda run, repeats: run())
    runs = {"a": lambda: calls.append("a") or 1.0, "b": lambda: calls.append("b") or 2.0}
    told = []
    assert interleaved(runs, 8, told.append) == {"a": [1.0] * 8, "b": [2.0] * 8}
    rounds = {"".join(calls[i : i + 2]) for i in range(0, 16, 2)}
    assert rounds == {"ab", "ba"}
    assert told == ["first runs", *(f"round {i} of 8" for i in range(1, 9))]


def test_a_long_case_ends_after_the_fewest_rounds(monkeypatch):
    monkeypatch.setattr(measure, "LONGEST", -1.0)
    assert len(interleaved({"a": lambda: None}, 8)["a"]) == measure.FEWEST == 5
    assert len(interleaved({"a": lambda: None}, 3)["a"]) == 3


def test_a_plot_goes_by_tokens_or_by_what_differs():
    batches = [{"size": size, "axes": ["batch size", "length"]} for size in ("2x8", "4x8")]
    place, label = _axis(batches)
    assert ([place(one) for one in batches], label) == ([16, 32], "batch size x length")
    shares = [{"size": f"256x32x{p}", "axes": ["hidden size", "responses", "%"]} for p in (0, 75)]
    place, label = _axis(shares)
    assert ([place(one) for one in shares], label) == ([0, 75], "%")


def test_the_environment_names_what_is_installed():
    found = environment()
    assert torch.__version__.startswith(found["torch"])  # the build's tag may be missing
    assert found["threads"] == str(torch.get_num_threads())
    assert not {"trl", "verl"} <= set(found)  # they do not work in one environment
