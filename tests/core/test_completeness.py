"""A variant is complete with references, numbers worked by hand, an oracle, a verdict per trainer, and its page."""

import re
from pathlib import Path

import pytest
import torch
from support.handworked import variants as handworked

import grpo_variants as gv
from grpo_variants.axes import AXES
from grpo_variants.catalogue import CATALOGUE
from grpo_variants.spelling import resolved_values
from grpo_variants.trainers import TRAINERS, verdicts_of
from grpo_variants.trainers.trl.translate import trl_lines
from grpo_variants.trainers.verl.translate import verl_lines
from grpo_variants.variant import UNCONFIRMED
from tools.docs import pages as docs_pages

ROOT = Path(__file__).parents[2]
NAMES = [variant.name for variant in CATALOGUE]

every_variant = pytest.mark.parametrize("variant", CATALOGUE, ids=NAMES)


def test_names_are_unique_and_first_in_the_registry():
    assert len(set(NAMES)) == len(NAMES)
    assert list(gv.names()[: len(NAMES)]) == NAMES


def test_at_least_45_members_are_confirmed_and_the_others_come_last():
    confirmed = [variant for variant in CATALOGUE if not variant.contrib]
    assert len(confirmed) >= 45
    assert CATALOGUE[: len(confirmed)] == tuple(confirmed)


def test_the_table_of_what_could_not_be_confirmed_is_complete():
    text = (ROOT / "docs" / "not-included.md").read_text("utf-8")
    (table,) = re.findall(r"\| in `contrib` .*\n\| --- .*\n((?:\|.*\n)+)", text)
    rows = "".join(line.split("|")[1] for line in table.splitlines())
    assert sorted(re.findall(r"`(\w+)`", rows)) == sorted(v.name for v in CATALOGUE if v.contrib)


@every_variant
def test_it_says_where_its_values_were_read(variant):
    assert re.fullmatch(r"\S.{20,}\.", variant.confirmed)
    assert variant.contrib == bool(re.fullmatch(r"[A-Z].{20,}\.", variant.unconfirmed))


# What counts as speaking of authors' code, and as saying which: a repository, and a file.
WORKS = "code|repository|recipe|script|readme|actor|trainer|run"
OF_AUTHORS = re.compile(rf"(?:authors'|[Tt]heir|[Ii]ts) (?:own )?(?:{WORKS})")
FILE = re.compile(r"\b[\w.-]+\.(?:py|sh|yaml|md)\b")
REPOSITORY = re.compile(r"(?<![\w/])(?!\S*\.(?:py|sh|yaml|md))[\w-]+/[\w.-]+(?:[,:]| at [0-9a-f]{7,40}\b)")


def says_which(text):
    return bool(REPOSITORY.search(text) and FILE.search(text))


@every_variant
def test_no_page_speaks_of_authors_code_without_a_repository_and_a_path(variant):
    assert not OF_AUTHORS.search(variant.confirmed) or says_which(variant.confirmed)
    page = docs_pages.page(variant).replace(UNCONFIRMED, "")
    assert not OF_AUTHORS.search(page) or says_which(variant.confirmed), OF_AUTHORS.search(page)


def test_nor_does_a_line_of_the_documentation_about_a_member():
    lines = [line for path in (ROOT / "docs").glob("*.md") for line in path.read_text("utf-8").splitlines()]
    claims = [line for line in lines if OF_AUTHORS.search(line)]
    named = {name for line in claims for name in re.findall(r"`(\w+)`", line) if name in NAMES}
    assert named >= {"gpg", "fipo"}
    assert [name for name in sorted(named) if not says_which(gv.get(name).confirmed)] == []


def test_what_says_which_code():
    assert says_which("Rule: Infini-AI-Lab/M2PO, verl/trainer/ppo/core_algos.py 683 to 867.")
    assert says_which(
        "The loss (horizon-rl/OpenKimi at 3126d4c8): `opmd` in openkimi/pmd/core_algos.py, lines 105 to 206."
    )
    assert not says_which("The authors' code (Infini-AI-Lab/M2PO), the range and its width.")
    assert not says_which("The authors' recipe in verl-recipe (spo): tracker, forgetting, normalisation.")
    assert not says_which("Its recipe (verl, recipe/dapo/run_dapo_qwen2.5_32b.sh): 0.2 and 0.28.")


def test_exactly_the_catalogue_is_worked_by_hand():
    assert sorted(handworked.CASES) == sorted(NAMES)


@every_variant
def test_it_says_what_it_is_and_where_it_comes_from(variant):
    assert re.fullmatch(r"[A-Z].{20,}\.", variant.summary)
    assert "L" in variant.formula
    assert variant.formula.count("{") == variant.formula.count("}")
    assert variant.references
    for reference in variant.references:
        assert reference.title
        assert 1990 <= reference.year <= 2030
        assert reference.arxiv is None or re.fullmatch(r"\d{4}\.\d{5}", reference.arxiv)


@every_variant
def test_it_has_a_verdict_for_each_trainer(variant):
    verdicts = verdicts_of(variant)
    assert [*verdicts] == [trainer.name for trainer in TRAINERS.values() if trainer.adapter is not None]
    for verdict in verdicts.values():
        assert re.match(r"equals \S|advantages equal \S|no counterpart\b.*[:;] \S", verdict), verdict


@every_variant
def test_its_numbers_are_the_paper_s(variant):
    assert variant.conventions == "paper"
    assert variant.singleton == "zero"


@every_variant
def test_its_spec_string_and_its_spelling_from_grpo_lead_back_to_it(variant):
    assert gv.get(str(variant)) == variant
    assert resolved_values(gv.get(docs_pages.spec_against(variant))) == resolved_values(variant)


def plain(inputs):
    """Tensors as nested lists."""
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


def oracle_rollouts(case):
    """A case's rollouts as the oracle takes them: a column a reward function; step rewards add up to a reward."""
    x = plain(case.rollouts)
    x.setdefault("rewards", [sum(r for r in row if r == r) for row in x.get("token_rewards", [])])
    for name in ("rewards", "greedy_rewards"):
        if name in x:
            x[name] = [value if isinstance(value, list) else [float(value)] for value in x[name]]
    return x


@every_variant
def test_the_oracle_gives_the_advantages_worked_by_hand(variant):
    from support.oracle import step as oracle

    case = handworked.CASES[variant.name]
    found = oracle.advantages(resolved_values(variant), oracle_rollouts(case))
    torch.testing.assert_close(
        torch.tensor(found, dtype=torch.float64),
        torch.tensor(case.advantages, dtype=torch.float64),
        rtol=1e-8,
        atol=1e-10,
    )


@every_variant
def test_the_oracle_gives_the_loss_and_the_gradient_worked_by_hand(variant):
    from support.oracle import step as oracle

    case = handworked.CASES[variant.name]
    tokens = case.tokens()
    x = plain({name: value for name, value in vars(tokens).items() if value is not None})
    values = resolved_values(variant)
    counted = oracle.trained(values, x)
    counts = oracle.count(counted, oracle.valid_cells(counted)) | dict(case.counts)
    out = oracle.loss_and_gradient(values, x, counts)
    assert out.loss == pytest.approx(case.loss, rel=1e-8, abs=1e-10)
    expected = handworked.numbers(case.gradient, 0.0)
    torch.testing.assert_close(torch.tensor(out.gradient).double(), expected, rtol=1e-6, atol=1e-8)


# Documentation


@every_variant
def test_its_page_is_up_to_date(variant):
    path = ROOT / "docs" / "variants" / f"{variant.name}.md"
    assert path.exists(), f"run `{docs_pages.COMMAND}`"
    assert path.read_text("utf-8") == docs_pages.page(variant), f"run `{docs_pages.COMMAND}`"


@every_variant
def test_its_page_says_what_matters(variant):
    page = docs_pages.page(variant)
    facts = [variant.formula, variant.summary, f'gv.get("{variant.name}")', *verdicts_of(variant).values()]
    facts += [reference.title for reference in variant.references]
    facts += [variant.confirmed, variant.unconfirmed]
    assert ("**In `contrib`**" in page) == variant.contrib
    facts += [f"`{key.partition('.')[2]}={value}`" for key, value in resolved_values(variant).items() if value == 0.28]
    for fact in facts:
        assert fact in page


SPANNING = [variant for variant in CATALOGUE if variant.whole_batch]


@pytest.mark.parametrize("variant", SPANNING, ids=[variant.name for variant in SPANNING])
def test_the_rule_on_its_page_makes_micro_batches_equal_the_step(variant):
    """Two micro-batches with the step's statistics add up to the step; with their own they do not."""
    generator = torch.Generator().manual_seed(2)

    def random(low, high):
        return low + (high - low) * torch.rand(8, 12, generator=generator, dtype=torch.float64)

    # The halves differ: right responses near the old policy but for one token, and wrong ones far from it.
    right, logp = torch.arange(8) < 4, random(-6, -2.5)
    log_ratio = torch.where(right, 0.02, 1.0)[:, None] * random(-1, 1)
    log_ratio[0, 0] = 0.6
    entropy = random(0, 3) + right[:, None]
    shared = {"old_logp": logp - log_ratio, "entropy": entropy, "draws": random(0, 1)}
    used = {k: v for k, v in shared.items() if k != "draws" or variant.surrogate.draws}
    advantages, mask = torch.where(right, 0.5, -2.0) * random(1, 2)[:, 0], random(0, 1) < 0.8
    mask[0, 0] = True
    step = gv.Tokens(logp=logp, mask=mask, advantages=advantages, **used)
    code = docs_pages.page(variant).partition("## A statistic of the whole batch")[2].split("```")[1]
    found = {"gv": gv, "step": step}
    exec(compile(code.removeprefix("python"), variant.name, "exec"), found)
    assert set(found["counts"].thresholds) == set(variant.threshold_names)

    def loss_of_halves(counts):
        rows = [slice(0, 4), slice(4, 8)]
        parts = [gv.Tokens(**{k: v[r] for k, v in vars(step).items() if v is not None}) for r in rows]
        return sum(gv.policy_loss(variant, part, counts).loss for part in parts).item()

    whole = gv.policy_loss(variant, step).loss.item()
    assert loss_of_halves(found["counts"]) == pytest.approx(whole, rel=1e-9)
    assert loss_of_halves(gv.Counts.of(step.mask)) != pytest.approx(whole, rel=1e-6)


def test_pages_name_what_spans_the_batch_and_what_draws():
    assert {v.name for v in SPANNING} == {"forking_tokens", "bapo", "m2po", "clip_cov", "kl_cov"}
    for variant in CATALOGUE:
        page = docs_pages.page(variant)
        assert ("## A statistic of the whole batch" in page) == variant.whole_batch
        assert ("Draws at random" in page) == (variant.name == "clip_cov")


def test_every_generated_text_is_up_to_date_and_no_page_is_left_over():
    texts = docs_pages.generated(ROOT)
    stale = [path.name for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text]
    assert stale == [], f"run `{docs_pages.COMMAND}`"
    assert set((ROOT / "docs" / "variants").glob("*.md")) == {path for path in texts if path.parent.name == "variants"}


def test_the_generator_writes_what_is_missing_and_removes_what_is_gone(tmp_path, capsys):
    (tmp_path / "docs" / "variants").mkdir(parents=True)
    (tmp_path / "docs" / "variants" / "gone.md").write_text("old")
    (tmp_path / "README.md").write_text("before\n<!-- begin variants -->old<!-- end variants -->\nafter\n")
    docs_pages.main(tmp_path)
    assert sorted(p.stem for p in (tmp_path / "docs" / "variants").glob("*.md")) == sorted([*NAMES, "index"])
    readme = (tmp_path / "README.md").read_text()
    assert readme.startswith("before\n<!-- begin variants -->\nEvery variant runs as functions.")
    assert "[dapo](docs/variants/dapo.md)" in readme
    assert "-->old<!--" not in readme
    capsys.readouterr()
    docs_pages.main(tmp_path)
    assert capsys.readouterr().out == ""


def verdicts():
    """Whether each trainer runs a variant as registered, as its command says."""
    for variant in CATALOGUE:
        for trainer, lines in (("TRL", trl_lines), ("verl", verl_lines)):
            try:
                list(lines(variant))
            except ValueError:
                yield variant.name, trainer, False
            else:
                yield variant.name, trainer, True


def test_pages_and_tables_say_which_trainer_runs_a_variant():
    table = docs_pages.index()
    guides = {trainer: (ROOT / "docs" / f"{trainer.lower()}.md").read_text("utf-8") for trainer in ("TRL", "verl")}
    for name, trainer, runs in verdicts():
        page = docs_pages.page(gv.get(name))
        assert (f"\n* {trainer}: refused. " not in page) == runs, (name, trainer)
        (row,) = re.findall(rf"^\| \[{name}\].*$", table, re.MULTILINE)
        assert (trainer in row.split("|")[-2]) == runs, (name, trainer)
        assert runs or f"`{name}`" in guides[trainer] or f"`gv_{name}`" in guides[trainer], (name, trainer)
    assert {(name, trainer) for name, trainer, runs in verdicts() if not runs} >= {("otb", "TRL"), ("spo", "verl")}


def test_the_site_leads_to_every_page():
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("nav:")[2].partition("not_in_nav")[0]
    assert set(re.findall(r": ([\w-]+\.md)$", nav, re.MULTILINE)) == {p.name for p in (ROOT / "docs").glob("*.md")}


def test_the_drawing_of_a_step_has_every_axis_at_its_place():
    drawing = docs_pages.BLOCKS["step"]("")
    places = dict(re.findall(r'^  (\w+)\["<b>\w+</b><br/>(.*)"\]$', drawing, re.MULTILINE))
    assert places["rollout"] == "filter<br/>overlong"
    assert places["objective"] == "ratio<br/>surrogate<br/>kl in the loss<br/>correction<br/>aggregation<br/>tokens"
    drawn = {word.partition(" ")[0] for axes in places.values() for word in axes.split("<br/>")}
    assert drawn == set(AXES) - {"conventions"}
    assert drawing in (ROOT / "docs" / "index.md").read_text("utf-8")


def test_an_unknown_block_is_refused():
    with pytest.raises(ValueError, match=r"x\.md: no block is named 'rows'; known: variants, step, axes, conventions"):
        docs_pages.fill("<!-- begin rows --><!-- end rows -->", "x.md")


def test_the_example_on_the_front_page_gives_what_it_says():
    code, _ = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "docs" / "index.md").read_text("utf-8"))
    found: dict = {}
    exec(compile(code, "docs/index.md", "exec"), found)
    stated = re.search(r"# tensor\(\[(.*?)\]\)", code)[1]
    assert found["advantages"].tolist() == pytest.approx([float(n) for n in stated.split(",")], abs=5e-5)
    assert found["out"].loss.item() == pytest.approx(0, abs=1e-6)
    # -A / (N l): 1.6202 / 40 and 0.5401 / 40
    assert found["logp"].grad[:2, 0].tolist() == pytest.approx([-0.040505, 0.0135025], abs=5e-6)


def test_every_test_that_the_documentation_names_exists():
    named = set()
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        named |= {(path.name, *ids) for ids in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", path.read_text("utf-8"))}
    missing = [ids for ids in named if not (ROOT / ids[1]).exists()]
    assert missing == []
    missing = [ids for ids in named if ids[2] and f"def {ids[2]}(" not in (ROOT / ids[1]).read_text("utf-8")]
    assert missing == []
    assert len(named) > len(NAMES)
