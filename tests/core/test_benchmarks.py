"""How benchmarks are judged: the worst pair, medians of ratios, margins, and bars that nothing was measured for."""

from benchmarks.bars import Bar, bars
from benchmarks.report import judge, table

RESULT = {
    "case": "loss",
    "size": "2x3",
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
    assert table([RESULT]).splitlines()[3] == "| loss | 2x3 | ours | 2e+03 | 3x | 2 | 4 | 0 |"
