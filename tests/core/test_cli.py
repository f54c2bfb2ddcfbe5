"""The command line without a trainer: list, show, version, help, and errors that end in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

import grpo_variants as gv
from grpo_variants.cli import app
from grpo_variants.spelling import resolved_values
from grpo_variants.trainers import TRAINERS
from grpo_variants.variant import UNCONFIRMED


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command in this process: (exit status, standard output, standard error)."""

    def call(*arguments, columns=120):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "argv", ["grpo-variants", *arguments])
        with pytest.raises(SystemExit) as ended:
            app.main()
        return (ended.value.code or 0, *capsys.readouterr())

    return call


def table(text):
    """Rows below `key value from`, by key."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split() == ["key", "value", "from"])
    rows = [line.split(maxsplit=2) for line in lines[start + 1 : lines.index("", start)]]
    return {key: (value, origin.strip()) for key, value, origin in rows}


def test_list_names_every_variant_with_what_it_is(run):
    status, out, err = run("list", columns=200)
    assert (status, err) == (0, "")
    rows = dict(
        line.split(maxsplit=1) for line in out.splitlines() if line.split()[:1] and line.split()[0] in gv.names()
    )
    wanted = {name: "contrib  " * gv.get(name).contrib + gv.get(name).summary for name in gv.names()}
    assert {name: text.strip() for name, text in rows.items()} == wanted
    assert "\ncontrib: uses at least one value we could not find in the paper or its authors' code.\n" in out


def test_show_says_what_was_confirmed_and_what_was_not(run):
    _, out, _ = run("show", "kimi_k15", columns=200)
    assert "confirmed: The loss and the centred rewards: the report, section 2.3.2.\n" in out
    reason = f"contrib: {UNCONFIRMED}. The report does not give tau"
    assert reason in out
    assert "\ncontrib:" not in run("show", "grpo", columns=200)[1]


def test_list_has_no_footnote_where_nothing_is_in_contrib(run):
    assert "contrib" not in run("list", "--baseline", "length_weighted", columns=200)[1]


def listed(out):
    return [line.split()[0] for line in out.splitlines() if line.split()[:1] and line.split()[0] in gv.names()]


@pytest.mark.parametrize(
    ("arguments", "axes"),
    [
        (["--ratio", "sequence"], {"ratio": "sequence"}),
        (["--ratio=sequence_token"], {"ratio": "sequence_token"}),
        (["--baseline", "group_mean", "--scale", "group_std"], {"baseline": "group_mean", "scale": "group_std"}),
        (["--correction", "token_truncate"], {"correction": "token_truncate"}),
    ],
)
def test_list_keeps_the_variants_that_have_a_choice(run, arguments, axes):
    status, out, _ = run("list", *arguments, columns=200)
    values = {name: resolved_values(gv.get(name)) for name in gv.names()}
    wanted = [n for n, v in values.items() if all(choice in v[axis].split("+") for axis, choice in axes.items())]
    assert (status, listed(out)) == (0, wanted)
    assert 0 < len(wanted) < len(values)


def test_list_says_when_nothing_has_a_choice(run):
    status, out, _ = run("list", "--transform", "pass_at_k", "--ratio", "sequence")
    assert (status, listed(out)) == (0, [])
    assert out.startswith("no variant has transform=pass_at_k, ratio=sequence; any other takes it as an option")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--ration", "sequence"], "error: --ration is no axis. Did you mean 'ratio'? Axes: selection, transform,"),
        (
            ["--ratio", "sequences"],
            "error: --ratio='sequences' is unknown. Did you mean 'sequence'? Allowed: none, token, sequence",
        ),
        (["--ratio"], "error: '--ratio' is not --AXIS CHOICE, as in --ratio sequence"),
        (["sequence", "ratio"], "error: 'sequence ratio' is not --AXIS CHOICE"),
    ],
)
def test_a_filter_that_is_none_ends_with_a_message(run, arguments, text):
    status, _, err = run("list", *arguments)
    assert status == 2
    assert err.startswith(text)


def test_show_says_what_differs_from_grpo_and_dapo_and_where_sources_differ(run):
    _, out, _ = run("show", "qae", columns=200)
    as_dapo = next(line for line in out.splitlines() if line.startswith("as dapo: "))
    assert as_dapo == "as dapo: dapo,baseline=group_quantile,overlong=keep"
    for name in ("grpo", "dapo"):
        spec = next(line for line in out.splitlines() if line.startswith(f"as {name}: ")).partition(": ")[2]
        assert resolved_values(gv.get(spec)) == resolved_values(gv.get("qae"))
    assert f"where the sources differ: {gv.get('qae').note}" in out
    assert "as grpo: " not in run("show", "grpo", columns=200)[1]


def test_show_gives_formula_values_origins_references_and_trainer_verdicts(run):
    status, out, err = run("show", "dapo,surrogate.high=0.3,kl=k3,kl.beta=0.01", columns=200)
    variant = gv.get("dapo,surrogate.high=0.3,kl=k3,kl.beta=0.01")
    assert (status, err) == (0, "")
    whose = "dapo as registered, without your changes: "
    assert out.startswith(f"{variant}\n{whose}{variant.summary}\n\n{variant.formula}\n")
    assert run("show", "dapo", columns=200)[1].startswith(f"dapo\n{variant.summary}\n\n{variant.formula}\n")
    rows = table(out)
    assert list(rows) == list(resolved_values(variant))
    assert rows["surrogate.high"] == ("0.3", "spec string")
    assert rows["surrogate.low"] == ("0.2", "paper")
    assert rows["kl.beta"] == ("0.01", "spec string")
    assert rows["kl.bound"] == ("20.0", "default of kl=k3")
    assert rows["surrogate.dual"] == ("none", "paper")
    assert "source: DAPO: An Open-Source LLM Reinforcement Learning System at Scale (2025), arXiv:2503.14476" in out
    assert f"trl: {TRAINERS['trl'].verdicts[variant.name]}" in out
    assert f"verl: {TRAINERS['verl'].verdicts[variant.name]}" in out


def test_show_takes_the_name_that_the_trainers_use(run):
    assert run("show", "gv_dapo")[1] == run("show", "dapo")[1]


def test_show_tells_conventions_from_options_and_finds_a_joined_parts_field(run):
    rows = table(run("show", "grpo,conventions=trl,scale.ddof=0", columns=200)[1])
    assert rows["scale.eps"] == ("0.0001", "conventions=trl")
    assert rows["scale.ddof"] == ("0", "spec string")
    spec = "grpo,correction=token_truncate+off_policy_mask,correction.threshold=0.5"
    rows = table(run("show", spec, columns=200)[1])
    assert rows["correction.off_policy_mask.threshold"] == ("0.5", "spec string")
    assert rows["correction.token_truncate.cap"][0] == "2.0"


def test_show_cuts_nothing_off_in_a_narrow_terminal(run):
    out = run("show", "grpo,correction=token_truncate+off_policy_mask,correction.threshold=0.5", columns=80)[1]
    assert "…" not in out
    assert "correction.off_policy_mask.threshold  0.5" in out


def test_translate_prints_the_settings_of_a_trainer(run):
    status, out, _ = run("translate", "gv_dapo,surrogate.high=0.3", "--to", "verl")
    lines = [line.removesuffix(" \\") for line in out.splitlines()]
    assert status == 0
    assert "algorithm.adv_estimator=gv_dapo" in lines
    assert "actor_rollout_ref.actor.clip_ratio_high=0.3" in lines
    assert run("translate", "rloo", "--to", "trl")[:2] == (0, 'loss_type: "gv_rloo"\n')


def test_version(run):
    assert run("--version") == (0, f"{gv.__version__}\n", "")


def test_without_arguments_the_command_explains_itself(run):
    status, out, err = run()
    assert status == 2
    assert all(word in out + err for word in ("Usage", "list", "show", "trl"))


ERRORS = [
    (("show", "nope"), "error: unknown variant 'nope'. `grpo-variants list` and gv.names() have all "),
    (("show", "dapoo"), "Did you mean 'dapo'?"),
    (
        ("show", "dapo,surrogate.hi=1"),
        "error: dapo: surrogate=clip has no field 'hi'. Did you mean 'high'? Its fields: low, high, dual.",
    ),
    (("show", "dapo,kl=k3"), "error: kl=k3 on 'dapo' needs kl.beta, which has no default"),
    (("translate", "nope", "--to", "trl"), "error: unknown variant 'nope'"),
    (("translate", "dapo", "--to", "jax"), "error: --to='jax'"),
]


@pytest.mark.parametrize(("arguments", "text"), ERRORS)
def test_a_wrong_spec_ends_with_one_line_and_status_2(run, arguments, text):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1


def test_an_unknown_command_ends_with_status_2(run):
    status, _, err = run("frobnicate")
    assert status == 2
    assert "No such command 'frobnicate'" in err


def test_a_users_module_that_cannot_be_imported_is_named(run, monkeypatch):
    monkeypatch.setenv("GRPO_VARIANTS_MODULES", "no_such_module_of_variants")
    status, _, err = run("list")
    assert status == 2
    assert err.startswith("error: GRPO_VARIANTS_MODULES names 'no_such_module_of_variants', which cannot be imported")


def test_the_launcher_without_trl_says_what_to_install(run, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "grpo_variants_trl"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "trl", None)
    status, _, err = run("trl", "--loss_type", "gv_dapo")
    assert status == 2
    assert "Install it in a clone of grpo-variants: pip install '.[trl]'" in err


def test_the_command_imports_no_trainer():
    # A list must not take the seconds that importing a trainer takes.
    code = (
        "import sys; sys.argv = ['grpo-variants', 'list']\n"
        "from grpo_variants.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'trl', 'verl', 'transformers', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "dapo" in done.stdout


OF_0_1 = Path(__file__).parents[1] / "cards_of_0_1"


def test_show_of_a_folder_shows_its_card_and_what_has_changed_since(run):
    status, out, err = run("show", str(OF_0_1 / "m2po"), columns=300)
    assert (status, err) == (0, "")
    assert out.startswith("m2po  (objective hash 8c50a6a8d444bb8a, trl)\n")
    former = "m2po,surrogate.low=0.3,surrogate.high=0.5"
    assert f"m2po had other defaults when this card was written: what it names is {former} today." in out
    rows = table(out + "\n")
    assert rows["surrogate.low"] == ("0.3", "paper")
    assert rows["length"] == ("256", "set by trl")


def test_show_of_a_folder_without_a_card_or_with_a_damaged_one_is_one_line(run, tmp_path):
    status, out, err = run("show", str(tmp_path))
    assert (status, out) == (2, "")
    assert err == (
        f"error: {tmp_path} has no grpo_variant.json; give a run's output folder or one of its checkpoints.\n"
    )
    (tmp_path / "grpo_variant.json").write_text("{")
    status, _, err = run("show", str(tmp_path))
    assert status == 2
    assert err.startswith(f"error: {tmp_path}/grpo_variant.json is truncated or damaged")
    assert err.count("\n") == 1
