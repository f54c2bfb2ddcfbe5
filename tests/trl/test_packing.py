"""Responses without gradient are left out of the forward, the rest packed: the same parameters, fewer tokens."""

import re
from types import SimpleNamespace

import pytest
import torch
from grpo_variants_trl.step import randomness
from grpo_variants_trl.step.packing import _has_relative_positions, has_no_gradient_without_advantage
from peft import LoHaConfig, LoraConfig
from support import tiny_model
from support.trl.runs import logged, make, weights
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    set_seed,
)
from trl.trainer.utils import split_tensor_dict

import grpo_variants as gv

# 16 responses per generation in groups of 4, two micro-batches per step, two iterations of each generation.
SCHEDULE = dict(
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_iterations=2,
    max_steps=4,
    learning_rate=2e-2,
    rewards=[tiny_model.exact],
)


def run(folder, spec, skip, **flags):
    """A trained trainer, and how many rows and token positions its model saw in forward passes with a gradient."""
    trainer = make(folder, f"gv_{spec}", skip_zero_gradient_rows=skip, **{**SCHEDULE, **flags})
    shapes = []

    def count(module, args, kwargs):
        if torch.is_grad_enabled():
            shapes.append(kwargs["input_ids"].shape)

    trainer.model.register_forward_pre_hook(count, with_kwargs=True)
    start = weights(trainer)
    trainer.train()
    return trainer, weights(trainer) - start, shapes


SKIPPING = [
    "dapo,filter=none,overlong=keep",
    "dapo,filter.max_rounds=0,overlong=keep",
    "dapo,filter=none",
    "grpo,kl=none",
    "dr_grpo",
    "gspo",
    "rloo,aggregation=prompt_mean",
    "grpo,kl=none,aggregation.empty_rows=exclude",
    "reinforce_pp,kl=none",
    "cispo,filter=none",
    "sapo",
]


@pytest.mark.parametrize("spec", SKIPPING)
def test_the_same_parameters_from_fewer_responses(tmp_path, spec):
    dense, moved, all_shapes = run(tmp_path / "dense", spec, False)
    packed, moved_too, shapes = run(tmp_path / "packed", spec, None)
    assert moved.abs().max() > 1e-3
    torch.testing.assert_close(moved_too, moved, rtol=1e-3, atol=1e-3 * moved.abs().max().item())
    assert len(shapes) == len(all_shapes) == 8, "every rank runs every forward"
    assert sum(s.numel() for s in shapes) < sum(s.numel() for s in all_shapes)
    assert logged(packed, "loss") == pytest.approx(logged(dense, "loss"), rel=1e-3, abs=1e-4)
    assert logged(packed, "grad_norm") == pytest.approx(logged(dense, "grad_norm"), rel=1e-3)
    share = logged(packed, "gv/scored_responses")
    assert not logged(dense, "gv/scored_responses")
    assert sum(share) / 4 < 1 or "filter.max_rounds" in spec or "reinforce_pp" in spec
    rows = sum(s[0] for s in shapes)
    assert rows < 64 or spec.startswith("reinforce_pp"), "nothing was left out"


def rollout(prompts, trainer):
    """TRL's own responses, with made-up log-probabilities of an engine."""
    ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    completions, _ = trainer._generate_single_turn(ids, None, {}, 4)
    return {"prompt_ids": ids, "completion_ids": completions, "logprobs": [[-0.9] * len(c) for c in completions]}


def uneven(completion_ids, **kwargs):
    """The last group is constant, and so are some others; single responses differ."""
    last = len(completion_ids) - 4
    return [1.0 if i >= last else float(sum(ids) % 3 == 0) for i, ids in enumerate(completion_ids)]


def uneven_steps(completion_ids, **kwargs):
    """A reward for the last token alone, or for the first one too where that is another."""
    totals, last = uneven(completion_ids), len(completion_ids) - 4
    return [
        [(0, 0.5)] * (len(ids) > 1 and i % 3 == 0 and i < last) + [(len(ids) - 1, total)]
        for i, (ids, total) in enumerate(zip(completion_ids, totals, strict=True))
    ]


def gradient(trainer, packing):
    """Loss and gradient of the step that the buffer holds."""
    trainer._packing, trainer._step_counts = packing, None
    trainer.model.zero_grad()
    total = 0.0
    for trainer._step in range(2):
        loss = trainer._compute_loss(trainer.model, trainer._buffered_inputs[trainer._step])
        loss.backward()
        total += loss.item()
    return total, torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


PACKED = [name for name in gv.names() if name != "otb"]


@pytest.mark.parametrize("name", PACKED)
def test_every_variant_packs_one_step_exactly(tmp_path, name):
    """Off policy, a group dropped: loss and gradient of the packed micro-batches are those of TRL's own."""
    flags = {"rewards": [uneven_steps if name == "grpo_process" else uneven]}
    if gv.get(name).needs_rollout_logp:
        flags["rollout_func"] = rollout
    spec = f"gv_{name},filter=zero_variance,filter.max_rounds=0{',transform.k=2' * (name == 'passk_analytic')}"
    trainer = make(tmp_path, spec, gradient_accumulation_steps=2, num_iterations=2, **flags)
    trainer.current_gradient_accumulation_steps = 2
    rows = [dict(trainer.train_dataset[i // 4]) for i in range(16)]
    out = trainer._generate_and_score_completions(rows)
    assert not out["gv_keep"].all()
    trainer._buffered_inputs = split_tensor_dict(out, 2)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    packing = trainer._packing
    loss, dense = gradient(trainer, None)
    packed_loss, packed = gradient(trainer, packing)
    assert dense.abs().max() > 1e-5
    assert packed_loss == pytest.approx(loss, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(packed, dense, rtol=1e-3, atol=1e-4 * dense.abs().max().item())


def test_every_response_counts_with_a_kl_term_and_is_still_trimmed(tmp_path):
    _, moved, all_shapes = run(tmp_path / "dense", "grpo", False)
    packed, moved_too, shapes = run(tmp_path / "packed", "grpo", None)
    torch.testing.assert_close(moved_too, moved, rtol=1e-3, atol=1e-3 * moved.abs().max().item())
    assert sum(s[0] for s in shapes) == sum(s[0] for s in all_shapes) == 64
    assert sum(s.numel() for s in shapes) < sum(s.numel() for s in all_shapes)
    assert logged(packed, "gv/scored_responses") == [1] * 4


def test_the_rows_that_are_left_are_dealt_evenly_the_longest_first(tmp_path):
    """Group 1 is constant, so 12 of 16 responses are left: 6 and 6, and the second micro-batch is not longer."""

    def reward(completion_ids, **kwargs):
        return [1.0 if 4 <= i < 8 else float(i % 4 == 0) for i in range(len(completion_ids))]

    _, _, shapes = run(tmp_path, "dr_grpo", True, rewards=[reward], num_iterations=1, max_steps=1)
    assert [s[0] for s in shapes] == [6, 6]
    assert shapes[1][1] <= shapes[0][1]


def test_a_step_without_any_gradient_runs_one_token_a_micro_batch(tmp_path):
    trainer, moved, shapes = run(
        tmp_path,
        "dr_grpo",
        None,
        rewards=[lambda completions, **kwargs: [1.0] * len(completions)],
        max_steps=1,
        num_iterations=1,
    )
    # Prompts have three tokens, and the stand-in keeps one of its completion.
    assert shapes == [torch.Size([1, 4])] * 2
    assert moved.abs().max() == 0
    assert logged(trainer, "gv/scored_responses") == [0]
    assert logged(trainer, "loss") == [0]


def test_metrics_are_means_over_the_responses_that_are_scored(tmp_path):
    """On policy every ratio is 1: a mean over all rows of what only some have would be below it."""
    dense, *_ = run(tmp_path / "dense", "dr_grpo", False, max_steps=1)
    packed, *_ = run(tmp_path / "packed", "dr_grpo", None, max_steps=1)
    assert logged(packed, "gv/scored_responses")[0] < 1
    assert logged(packed, "gv/ratio/mean") == pytest.approx([1], abs=1e-5)
    assert 0.5 < logged(packed, "entropy")[0] <= torch.log(torch.tensor(3.0)) + 1e-4
    assert logged(dense, "gv/ratio/mean") == pytest.approx([1], abs=1e-5)


def test_full_parameters_and_a_model_with_absolute_positions(tmp_path):
    """GPT-2 adds a vector for each position, which padding in front of a prompt shifts: prompts keep theirs."""

    def gpt2():
        set_seed(0)
        size = dict(vocab_size=3, n_positions=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
        return GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **size))

    prompts = tiny_model.dataset().map(lambda row: {"prompt": row["prompt"][: 1 + 2 * (row["t"] % 3)]})
    moves = []
    for skip in (False, None):
        trainer, moved, _ = run(
            tmp_path, "dr_grpo", skip, model=gpt2(), peft_config=None, train_dataset=prompts, max_steps=2
        )
        moves.append(moved)
    assert trainer._packing.skip
    assert not trainer._packing.trim_prompts
    torch.testing.assert_close(moves[1], moves[0], rtol=1e-3, atol=1e-3 * moves[0].abs().max().item())


@pytest.mark.parametrize(
    ("config", "relative"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, True),
        ({"rope_theta": 1e4}, True),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, False),
        ({"rope_parameters": {"rope_type": "longrope"}}, False),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}, "sliding_attention": {}}}, True),
        ({"rope_parameters": {"rope_type": "default"}, "attention_chunk_size": 8192}, False),
        ({"rope_parameters": {"rope_type": "default"}, "layer_types": ["linear_attention"]}, False),
        ({"rope_parameters": {"rope_type": "default"}, "layer_types": ["sliding_attention"]}, True),
        ({"n_positions": 32}, False),
    ],
)
def test_prompts_are_trimmed_only_where_attention_is_relative(config, relative):
    assert _has_relative_positions(SimpleNamespace(**config)) == relative


def test_widths_stay_multiples_where_trl_wants_them(tmp_path):
    _, _, shapes = run(tmp_path, "dr_grpo", None, pad_to_multiple_of=4, max_steps=1)
    assert all(s[1] % 4 == 0 for s in shapes)


@pytest.mark.parametrize("name", gv.names())
def test_which_variants_pull_at_responses_without_an_advantage(name):
    """A squared log ratio does, and the penalty on tokens of high covariance."""
    pulling = ("kimi_k15", "pmd_mean", "pmd_partition", "prime_rl", "kl_cov")
    assert has_no_gradient_without_advantage(gv.get(name)) == (name not in pulling)


REFUSED = {
    "grpo": (dict(), "the KL term (kl.beta=0.04) has a gradient for every response"),
    "kimi_k15": (dict(), "kimi_k15 has a gradient for every response"),
    "dr_grpo": (dict(entropy_coef=0.1), "the entropy bonus has a gradient for every response"),
    "kl_cov": (dict(), "kl_cov has a gradient for every response"),
    "rloo": (
        dict(peft_config=LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.1, exclude_modules=["lm_head"])),
        "lora_dropout=0.1 draws random numbers, which would fall on other tokens (set lora_dropout=0)",
    ),
    "gspo": (
        dict(model=tiny_model.mixture_of_experts(), peft_config=None),
        "the experts' load-balancing loss is one of the whole micro-batch",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_it_is_not_exact_it_is_off_and_asking_for_it_is_refused(tmp_path, name, capsys):
    flags, reason = REFUSED[name]
    flags = {"max_steps": 1, **flags}
    text = f"skip_zero_gradient_rows=True would change the gradient: {reason}. Leave it unset, or set it to False."
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        make(tmp_path, f"gv_{name}", skip_zero_gradient_rows=True, **flags)
    trainer = make(tmp_path, f"gv_{name}", **flags)
    trainer.train()
    assert "all responses are scored" in capsys.readouterr().out
    assert trainer._packing is None or not trainer._packing.skip


def small(config, model, **more):
    """A model of another architecture at test size."""
    set_seed(0)
    sizes = dict(vocab_size=3, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=40)
    ends = dict(bos_token_id=0, eos_token_id=0, pad_token_id=0)
    return model(config(**{**sizes, **ends, **more}))


def opt(**more):
    return small(OPTConfig, OPTForCausalLM, ffn_dim=64, word_embed_proj_dim=32, **more)


def bloom(**more):
    return small(BloomConfig, BloomForCausalLM, **more)


def gpt2_with_dropout(**more):
    size = dict(n_positions=40, n_embd=32, n_layer=1, n_head=2)
    return small(GPT2Config, GPT2LMHeadModel, **size, **more)


class Noise(torch.nn.Embedding):
    """Dropout that no setting tells of, and no module of PyTorch's."""

    def forward(self, ids):
        return torch.nn.functional.dropout(super().forward(ids), 0.1, self.training)


class Noisy(LlamaForCausalLM):
    """A model of a user's own code."""

    def __init__(self, config):
        super().__init__(config)
        self.model.embed_tokens = Noise(config.vocab_size, config.hidden_size)


def noisy():
    set_seed(0)
    return Noisy(tiny_model.model().config)


NO_DROPOUT = dict(dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
RANDOM = {
    "a function of the code": (
        lambda: (opt(), {}),
        "dropout=0.1 draws random numbers, which would fall on other tokens (set dropout=0 in the model's config)",
    ),
    "hidden layers": (lambda: (bloom(hidden_dropout=0.1), {}), "hidden_dropout=0.1 draws random numbers"),
    "layers that are left out": (lambda: (opt(layerdrop=0.5, **NO_DROPOUT), {}), "layerdrop=0.5 draws random numbers"),
    "modules": (lambda: (gpt2_with_dropout(), {}), "pdrop=0.1 draws random numbers, which would fall on other tokens"),
    "an adapter's own": (
        lambda: (
            tiny_model.model(),
            {"peft_config": LoHaConfig(r=4, target_modules=["q_proj"], module_dropout=0.5, task_type="CAUSAL_LM")},
        ),
        "module_dropout=0.5 draws random numbers, which would fall on other tokens (set module_dropout=0)",
    ),
    "noise on embeddings": (
        lambda: (tiny_model.model(), {"neftune_noise_alpha": 5.0}),
        "neftune_noise_alpha=5.0 draws random numbers, which would fall on other tokens (leave it unset)",
    ),
    "nothing that has a name": (
        lambda: (noisy(), {}),
        "two forward passes over one response differ, so the model draws",
    ),
    "what switching modules off does not reach": (
        lambda: (opt(), {"disable_dropout": True}),
        "two forward passes over one response differ, so the model draws",
    ),
}


@pytest.mark.parametrize("case", RANDOM)
def test_random_numbers_of_any_origin_are_seen_at_the_start(tmp_path, case):
    build, reason = RANDOM[case]
    model, flags = build()
    flags = {"peft_config": None, **flags}
    trainer = make(tmp_path, "gv_dr_grpo", model=model, **flags)
    assert trainer._packing is None
    assert reason in trainer._packing_text
    model, _ = build()
    with pytest.raises(ValueError, match=re.escape(reason)):
        make(tmp_path, "gv_dr_grpo", model=model, skip_zero_gradient_rows=True, **flags)


NOT_RANDOM = {
    "rates of 0": lambda: (opt(**NO_DROPOUT), {}),
    "modules that are switched off": lambda: (gpt2_with_dropout(), {"disable_dropout": True}),
    "a rate of another head": lambda: (
        gpt2_with_dropout(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, summary_first_dropout=0.1),
        {},
    ),
}


@pytest.mark.parametrize("case", NOT_RANDOM)
def test_what_draws_nothing_is_packed(tmp_path, case):
    model, flags = NOT_RANDOM[case]()
    assert make(tmp_path, "gv_dr_grpo", model=model, peft_config=None, **flags)._packing.skip


def test_looking_for_random_numbers_leaves_the_runs_alone(tmp_path, monkeypatch):
    """The same responses follow, and the model is in the mode that it was in."""
    states = []
    for look in (True, False):
        if not look:
            monkeypatch.setattr(randomness, "_repeats", lambda trainer: True)
        trainer = make(tmp_path, "gv_dr_grpo")
        states.append((trainer.model.training, torch.random.get_rng_state()))
    assert states[0][0] == states[1][0]
    assert torch.equal(states[0][1], states[1][1])


def test_a_sharded_model_of_unknown_code_is_not_packed():
    """It cannot run before it is prepared: what it draws is not known."""
    plain = dict(neftune_noise_alpha=None, is_fsdp_enabled=True, is_deepspeed_enabled=False)
    args = SimpleNamespace(disable_dropout=False)
    assert randomness.random_numbers(SimpleNamespace(model=noisy(), args=args, **plain)).startswith("a sharded model")
    assert randomness.random_numbers(SimpleNamespace(model=tiny_model.model(), args=args, **plain)) is None


def test_what_is_done_is_printed_at_the_start(tmp_path, capsys):
    make(tmp_path, "gv_dr_grpo", max_steps=1).train()
    assert "  responses with advantage 0 are not scored: same gradient, less work;" in capsys.readouterr().out
    make(tmp_path, "gv_dr_grpo", max_steps=1, skip_zero_gradient_rows=False).train()
    assert "as TRL deals them (skip_zero_gradient_rows=False)." in capsys.readouterr().out


def test_the_switch_of_everything_fast_switches_it_off(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_VARIANTS_FAST", "0")
    trainer = make(tmp_path, "gv_dr_grpo")
    assert trainer._packing is None
    assert trainer._packing_text == "all responses are scored, as TRL deals them (GRPO_VARIANTS_FAST=0)."
    with pytest.raises(ValueError, match="skip_zero_gradient_rows=True contradicts GRPO_VARIANTS_FAST=0"):
        make(tmp_path, "gv_dr_grpo", skip_zero_gradient_rows=True)


def test_it_has_no_effect_on_a_built_in_loss_and_says_so(tmp_path):
    with pytest.raises(
        ValueError, match="skip_zero_gradient_rows=True has no effect with the built-in loss_type='grpo'"
    ):
        make(tmp_path, "grpo", skip_zero_gradient_rows=True)
