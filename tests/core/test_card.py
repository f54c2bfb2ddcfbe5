"""The variant card: equal objectives have equal hashes, every value has an origin, differences are named."""

import json
import os
import re
from pathlib import Path

import pytest
from support.hashes import HASHES_OF_0_1

import grpo_variants as gv
from grpo_variants.card import FILE_NAME, Card, differences, former_spec, read_card, value_origins
from grpo_variants.catalogue.former import FORMER
from grpo_variants.files import FileError
from grpo_variants.spelling import as_released, resolved_values


def card(spec="dapo", **more):
    return Card(**{"variant": gv.get(spec), "trainer": "trl", **more})


@pytest.mark.parametrize("spec", HASHES_OF_0_1)
def test_the_hash_does_not_change_between_releases_without_a_reason(spec):
    # Pinned: a published hash has to be comparable later. A field that is added to a part leaves it as it was.
    assert card(spec).hash == HASHES_OF_0_1[spec]
    assert re.fullmatch("[0-9a-f]{16}", card(spec).hash)


def test_an_added_field_counts_where_it_says_something_new():
    assert card("m2po,surrogate.rule=mask").hash != card("m2po").hash
    assert card("grpo,kl.exempt=0.2").hash != card("grpo").hash
    assert as_released(resolved_values(gv.get("m2po"))).keys() == resolved_values(gv.get("m2po")).keys() - {
        "surrogate.rule",
        "aggregation.rows",
    }
    # The value that means what the part meant before, not the default, is what is left out.
    assert "surrogate.first" in as_released(resolved_values(gv.get("bapo")))
    assert "surrogate.first" not in as_released(resolved_values(gv.get("bapo,surrogate.first=floor")))


def test_a_card_of_before_a_field_was_added_does_not_differ_by_it():
    before = card("grpo").as_dict()
    del before["values"]["kl.exempt"]
    assert differences(before, card("grpo,kl.beta=0.1").as_dict()) == ["kl.beta: 0.04 -> 0.1"]
    assert differences(before, card("grpo,kl.exempt=0.2").as_dict()) == ["kl.exempt: absent -> 0.2"]


SAME = [
    ("dr_grpo", "grpo,kl=none,scale=none,aggregation=constant"),
    ("rloo", "reinforce,baseline=leave_one_out"),
    ("dapo", "dapo,surrogate.high=0.28,filter=zero_variance"),
    ("dapo", " dapo , surrogate.low = 0.2 "),
    ("grpo,kl=k3,kl.beta=0.04", "grpo"),
    ("rloo,conventions=trl", "rloo"),  # a member without a standard deviation, ratio or KL has no such numerics
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_objectives_have_the_same_hash(one, other):
    assert card(one).hash == card(other).hash
    assert differences(card(one).as_dict(), card(other).as_dict()) == []


def test_every_variant_has_a_hash_of_its_own():
    hashes = {name: card(name).hash for name in gv.names()}
    assert len(set(hashes.values())) == len(hashes)


CHANGES = [
    ("grpo", "scale.eps=1e-4"),
    ("grpo", "scale.ddof=0"),
    ("grpo", "baseline=leave_one_out"),
    ("grpo", "singleton=raw"),
    ("grpo", "ratio.bound_high=none"),
    ("grpo", "surrogate.low=0.1"),
    ("grpo", "surrogate.high=0.28"),
    ("grpo", "surrogate.dual=3"),
    ("grpo", "kl.beta=0.1"),
    ("grpo", "kl.gradient=k2"),
    ("grpo", "kl.weighted=ratio"),
    ("grpo", "aggregation=token_mean"),
    ("grpo", "aggregation.empty_rows=exclude"),
    ("grpo", "correction=token_truncate"),
    ("dr_grpo", "aggregation.length=512"),
    ("dapo", "filter.metric=accuracy"),
    ("dapo", "overlong=keep"),
    ("dapo", "overlong.statistics=drop"),
    ("dapo", "tokens=top_entropy"),
    ("grpo", "conventions=trl"),
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_any_changed_value_changes_the_hash(name, change):
    assert card(f"{name},{change}").hash != card(name).hash


def test_what_the_trainer_adds_is_part_of_the_hash_and_the_rest_is_not():
    plain = card("dr_grpo")
    assert card("dr_grpo", effective={"max_completion_length": 512}).hash != plain.hash
    assert card("dr_grpo", effective={"a": 1, "b": 2}).hash == card("dr_grpo", effective={"b": 2, "a": 1}).hash
    assert card("dr_grpo", trainer="verl", origins={"scale": "flag"}, notes=("A note.",)).hash == plain.hash


def test_differences_name_the_changed_values():
    before = card("dr_grpo", effective={"max_completion_length": 512}).as_dict()
    after = card("dr_grpo,scale=group_std,surrogate.high=0.3", effective={"entropy_coef": 0.1}).as_dict()
    assert differences(before, after) == [
        "scale: none -> group_std",
        "scale.eps: absent -> 1e-06",
        "scale.ddof: absent -> 1",
        "scale.eps_in: absent -> std",
        "surrogate.high: 0.2 -> 0.3",
        "entropy_coef: absent -> 0.1",
        "max_completion_length: 512 -> absent",
    ]


def test_a_written_card_is_plain_json_and_reads_back(tmp_path):
    made = card("dapo,surrogate.high=0.3", origins={"surrogate.high": "user"}, notes=("A note.",))
    path = made.write(tmp_path / "run")
    assert path == tmp_path / "run" / FILE_NAME == tmp_path / "run" / "grpo_variant.json"
    read = read_card(tmp_path / "run")
    raw = json.loads(path.read_text())
    assert read == made.as_dict() == {key: raw[key] for key in raw if key not in ("format", "checksum")}
    assert (read["variant"], read["spec"], read["host"]) == ("dapo", "dapo,surrogate.high=0.3", "trl")
    assert read["values"]["surrogate.high"] == {"value": 0.3, "origin": "user"}
    assert read["values"]["surrogate.low"] == {"value": 0.2, "origin": "paper"}
    assert read["references"][0].endswith("(2025), arXiv:2503.14476")
    assert read["notes"] == ["A note."]
    assert set(read["versions"]) >= {"torch"}
    assert differences(read, made.as_dict()) == []


def test_there_is_no_card_in_an_empty_folder(tmp_path):
    assert read_card(tmp_path) is None


def test_a_card_of_version_0_1_0_is_read(tmp_path):
    (tmp_path / FILE_NAME).write_text(json.dumps({"format": 1, **card("dapo").as_dict()}))
    assert read_card(tmp_path) == card("dapo").as_dict()
    assert differences(read_card(tmp_path), card("dapo,surrogate.high=0.3").as_dict()) == [
        "surrogate.high: 0.28 -> 0.3"
    ]


@pytest.mark.parametrize("raw", [{}, {"values": 3}, {"values": {"kl": "none"}}, {"values": {}, "effective": []}])
def test_a_file_that_is_no_card_says_so(tmp_path, raw):
    (tmp_path / FILE_NAME).write_text(json.dumps(raw))
    with pytest.raises(FileError) as caught:
        read_card(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / FILE_NAME} is no variant card, since it lacks its table of values: delete it, since a card is "
        "only compared."
    )


HISTORY = (
    {"step": 2, "key": "kl.beta", "old": 0.04, "new": 0.5},
    {"step": 5, "key": "kl.beta", "old": 0.5, "new": 0.25},
    {"step": 5, "key": "kl", "old": "k3", "new": None},
)


def test_a_history_is_written_told_in_a_paragraph_and_no_part_of_the_hash(tmp_path):
    changed = card("grpo", history=HISTORY)
    changed.write(tmp_path)
    assert read_card(tmp_path)["history"] == list(HISTORY)
    assert changed.hash == card("grpo").hash
    assert (
        "Changed while it trained: `kl.beta` from 0.04 to 0.25 (2 times, steps 2 to 5); `kl` from k3 to none (in step 5"
    ) in changed.paragraph()


@pytest.mark.parametrize("history", [3, [3], [{"step": 2, "key": "kl.beta"}]])
def test_a_history_that_is_none_says_so(tmp_path, history):
    (tmp_path / FILE_NAME).write_text(json.dumps({"values": {}, "history": history}))
    with pytest.raises(FileError, match=r"has a history whose entries lack key, new, old, step: delete it"):
        read_card(tmp_path)


def test_a_card_that_cannot_be_written_leaves_the_one_that_is_there(tmp_path, monkeypatch):
    path = card("dapo").write(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(FileError, match=f"^{path} cannot be written"):
        card("grpo").write(tmp_path)
    assert read_card(tmp_path)["spec"] == "dapo"


def test_a_card_holds_no_number_that_json_does_not_have(tmp_path):
    with pytest.raises(ValueError, match=r"finite numbers only, and effective\.entropy_coef is nan"):
        card("dapo", effective={"entropy_coef": float("nan")}).write(tmp_path)


# (spec, what the caller knows, keys and the origins they must have)
ORIGINS = [
    ("dapo", {}, dict.fromkeys(resolved_values(gv.get("dapo")), "paper")),
    ("dapo,surrogate.high=0.3", {"surrogate.high": "flag"}, {"surrogate.high": "flag", "surrogate.low": "paper"}),
    (
        "dapo,kl=k3,kl.beta=0.1",
        {"kl": "spec", "kl.beta": "spec"},
        {"kl": "spec", "kl.beta": "spec", "kl.placement": "default of kl=k3", "kl.bound": "default of kl=k3"},
    ),
    (
        "dapo,conventions=trl,kl=k3,kl.beta=0.1",
        {"kl": "spec", "kl.beta": "spec", "conventions": "spec"},
        {
            "scale.eps": "conventions=trl",
            "scale.ddof": "paper",
            "ratio.bound_low": "conventions=trl",
            "kl.placement": "default of kl=k3",
            "kl.bound": "conventions=trl",
            "conventions": "spec",
        },
    ),
    (
        "dapo,conventions=verl",
        {"conventions": "spec"},
        {"singleton": "conventions=verl", "surrogate.dual": "conventions=verl"},
    ),
    ("dapo,surrogate.high=0.3", {}, {"surrogate.high": "set in code"}),
]


@pytest.mark.parametrize(("spec", "given", "expected"), ORIGINS)
def test_every_value_has_an_origin(spec, given, expected):
    origins = value_origins(gv.get(spec), given)
    assert list(origins) == list(resolved_values(gv.get(spec)))
    assert {key: origins[key] for key in expected} == expected


def test_the_paragraph_says_what_a_paper_must_say():
    text = card("grpo,kl=none,surrogate.high=0.28", notes=("Groups are not refilled.",)).paragraph()
    assert text == (
        "## Objective\n\n"
        "Trained with `grpo,kl=none,surrogate.high=0.28` (grpo-variants, objective hash "
        f"`{card('grpo,kl=none,surrogate.high=0.28').hash}`).\n\n"
        "`grpo`: Group-normalised advantage, token ratio, PPO clip, k3 penalty in the loss, mean over each response. "
        "Defined in DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models (2024), "
        "arXiv:2402.03300.\n\n"
        "Set differently from the paper: `surrogate.high=0.28`, `kl=none`.\n\n"
        "Groups are not refilled.\n"
    )


def test_a_value_that_is_set_to_the_papers_is_not_called_different():
    text = card("dapo", origins={"surrogate.high": "flag epsilon_high=0.28"}).paragraph()
    assert "differently" not in text


def test_the_text_shows_every_value_with_its_origin():
    made = card("dr_grpo", origins={"scale": "flag scale_rewards=none"}, effective={"max_completion_length": 6})
    lines = made.text().splitlines()
    assert lines[0] == f"variant dr_grpo  (objective hash {made.hash})"
    rows = {key: rest for key, _, rest in (line.strip().partition("  ") for line in lines[2:])}
    assert rows["scale"].split(maxsplit=1) == ["none", "flag scale_rewards=none"]
    assert rows["surrogate.dual"].split() == ["none", "paper"]
    assert rows["max_completion_length"].split(maxsplit=1) == ["6", "set by trl"]
    assert set(rows) >= set(resolved_values(made.variant))


def test_a_users_own_variant_is_its_own_paper():
    mine = gv.Variant(name="mine_for_card", summary="Mine.")
    made = Card(variant=mine, trainer="trl")
    assert set(value_origins(mine, {}).values()) == {"paper"}
    assert "Defined in no reference." in made.paragraph()


def test_a_card_says_what_of_a_variant_was_not_confirmed():
    doubt = gv.get("deepseek_v32").unconfirmed
    assert card("deepseek_v32").as_dict()["unconfirmed"] == doubt
    sentence = (
        "`deepseek_v32` is in contrib: uses at least one value we could not find in the paper or its authors' code."
    )
    assert f"{sentence} {doubt}" in card("deepseek_v32").paragraph()
    assert f"  contrib: {doubt}" in card("deepseek_v32").text().splitlines()
    assert card("dapo").as_dict()["unconfirmed"] == ""
    assert "contrib" not in card("dapo").paragraph() + card("dapo").text()


OF_0_1 = Path(__file__).parents[1] / "cards_of_0_1"  # written by version 0.1.0
TODAY = {
    "m2po": "m2po,surrogate.low=0.3,surrogate.high=0.5",
    "bapo_without_dual": "bapo,surrogate.first=floor,surrogate.target=0.5,surrogate.dual=none",
}


@pytest.mark.parametrize("name", TODAY)
def test_a_card_of_0_1_that_names_a_changed_member_says_so(name):
    before = read_card(OF_0_1 / name)
    assert former_spec(before) == TODAY[name]
    now = Card(variant=gv.get(before["spec"]), trainer="trl", effective={"length": 256}).as_dict()
    told = differences(before, now)[-1]
    member = before["variant"]
    assert told == f"{member} had other defaults when this card was written: what it names is {TODAY[name]} today"
    same = Card(variant=gv.get(TODAY[name]), trainer="trl", effective={"length": 256})
    assert differences(before, same.as_dict()) == []
    assert same.hash == before["hash"]


@pytest.mark.parametrize("name", FORMER)
def test_a_card_of_today_says_nothing_of_the_kind(name):
    for spec in (name, f"{name},{FORMER[name]}", f"{name},tokens=top_entropy"):
        assert former_spec(card(spec).as_dict()) is None


def test_nor_does_one_of_a_member_that_has_not_changed():
    assert former_spec(card("dapo").as_dict()) is None
    told = differences(card("dapo").as_dict(), card("dapo,surrogate.high=0.3").as_dict())
    assert told == ["surrogate.high: 0.28 -> 0.3"]


def test_a_choice_that_got_another_word_keeps_its_hash_and_compares_with_older_cards():
    """transform=signed was called verdict: the same objective, the same hash, no difference; the old word is told."""
    new = card("w_reinforce").as_dict()
    assert new["values"]["transform"]["value"] == "signed"
    older = {**new, "hash": "", "values": {**new["values"], "transform": {"value": "verdict", "origin": "paper"}}}
    assert differences(older, new) == []
    moved = card("w_reinforce,transform.right=0.2").as_dict()
    assert differences(older, moved) == ["transform.right: 0.1 -> 0.2"]
    with pytest.raises(ValueError, match=r"grpo: transform=verdict is called transform=signed now; write that\."):
        gv.get("grpo,transform=verdict")
