"""Random optimizer steps and random members of the family, shared by the tests."""

from dataclasses import MISSING, dataclass, fields, replace

import numpy as np
import torch
from hypothesis import strategies as st

import grpo_variants as gv
from grpo_variants.axes import AXES
from grpo_variants.fences import FENCES
from grpo_variants.spelling import resolved_values
from support.cases import objectives as cases_objectives

TOKEN_INPUTS = ("logp", "old_logp", "ref_logp", "rollout_logp", "entropy", "draws")
ROLLOUT_INPUTS = (
    "rewards",
    "groups",
    "valid",
    "mask",
    "token_rewards",
    "step_ends",
    "greedy_rewards",
    "reward_weights",
    "old_logp",
    "ref_logp",
    "entropy",
    "sum_pi_squared",
)
LENGTH = 7.0  # the trainer's maximum completion length, for aggregation=constant


@dataclass(frozen=True)
class Case:
    """Rollouts and tokens of one optimizer step, as NumPy arrays; absent inputs are None."""

    groups: list
    rewards: np.ndarray
    mask: np.ndarray
    logp: np.ndarray
    old_logp: np.ndarray
    ref_logp: np.ndarray
    rollout_logp: np.ndarray
    entropy: np.ndarray
    draws: np.ndarray
    valid: np.ndarray | None = None
    token_rewards: np.ndarray | None = None
    step_ends: np.ndarray | None = None
    greedy_rewards: np.ndarray | None = None
    reward_weights: np.ndarray | None = None
    sum_pi_squared: np.ndarray | None = None
    advantages: np.ndarray | None = None
    keep: np.ndarray | None = None
    correction: np.ndarray | None = None
    row_weights: np.ndarray | None = None

    def __getitem__(self, rows):
        """The same step for a selection of its responses."""
        chosen = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "reward_weights"}
        picked = {name: value[rows] for name, value in chosen.items() if name != "groups" and value is not None}
        return replace(self, groups=[self.groups[i] for i in rows], **picked)

    def tensors(self, dtype):
        """Every input as a tensor, floating ones in `dtype`."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        kept = {"groups": given.pop("groups")}
        for name, value in given.items():
            tensor = torch.as_tensor(value)
            kept[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
        return kept

    def rollouts(self, dtype=torch.float64, **changes):
        """Inputs of `gv.advantages`."""
        given = {name: value for name, value in self.tensors(dtype).items() if name in ROLLOUT_INPUTS}
        return gv.Rollouts(**(given | changes))

    def tokens(self, dtype=torch.float64, **changes):
        """Inputs of `gv.policy_loss`; logp is a leaf with a gradient."""
        wanted = (*TOKEN_INPUTS, "mask", "groups", "advantages", "keep", "correction", "row_weights")
        given = {name: value for name, value in self.tensors(dtype).items() if name in wanted} | changes
        given["logp"] = given["logp"].detach().clone().requires_grad_()
        return gv.Tokens(**given)

    def plain(self, dtype=torch.float64):
        """Inputs of the oracle: nested lists of the numbers that a tensor of `dtype` holds."""
        return {name: value if name == "groups" else value.tolist() for name, value in self.tensors(dtype).items()}


def ragged_mask(rng, rows, width):
    """Rows of different lengths with holes; from four rows on, one of them is empty."""
    lengths = rng.integers(1, width + 1, rows)
    mask = np.arange(width) < lengths[:, None]
    mask &= (rng.random((rows, width)) > 0.2) | (np.arange(width) == lengths[:, None] - 1)
    if rows > 3:
        mask[1] = False
    return mask


def _below_zero(*logps):
    """Log-probabilities of several policies, lowered by what the largest of each token is above 0."""
    above = np.maximum(np.max(logps, axis=0), 0)
    return [logp - above for logp in logps]


def random_case(seed, rows=9, width=6, spread=0.4):
    """A step with uneven, interleaved groups (one of them a singleton), holes, invalid rows and missing rewards.

    spread: standard deviation of the log ratios between the policies.
    """
    rng = np.random.default_rng(seed)
    prompts = 1 if seed % 5 == 0 else max(rows // 3, 1)  # one large group, for what needs more than a few siblings
    groups = [f"prompt {g}" for g in rng.integers(0, prompts, rows)]
    if seed % 3 == 1:  # any rewards; else within [0, 1], their weighted sum too
        rewards = rng.choice([0.0, 1.0, rng.normal()], (rows, 2)) + rng.normal(size=(rows, 2)) * rng.integers(0, 2)
    else:
        rewards = rng.choice([0.0, 0.0, 0.25, 1.0], (rows, 2))
    rewards[rng.random((rows, 2)) < 0.1] = np.nan
    if rows > 3:
        groups[rows - 1], rewards[rows - 2] = "alone", np.nan
    mask, logp = ragged_mask(rng, rows, width), -rng.exponential(1.0, (rows, width))
    valid = rng.random(rows) > 0.1
    old_logp, ref_logp, rollout_logp = (logp + spread * rng.normal(size=logp.shape) for _ in range(3))
    # All policies a little less sure, so that no probability is above 1; the ratios stay.
    logp, old_logp, ref_logp, rollout_logp = _below_zero(logp, old_logp, ref_logp, rollout_logp)
    return Case(
        groups=groups,
        rewards=rewards,
        valid=valid,
        mask=mask,
        logp=logp,
        old_logp=old_logp,
        ref_logp=ref_logp,
        rollout_logp=rollout_logp,
        entropy=rng.exponential(1.0, logp.shape),
        draws=np.random.default_rng([seed, 1]).random(logp.shape),
        token_rewards=rng.normal(size=logp.shape),
        step_ends=rng.random(logp.shape) < 0.5,
        sum_pi_squared=np.random.default_rng([seed, 2]).random(logp.shape),
        greedy_rewards=rng.normal(size=(rows, 2)),
        reward_weights=rng.uniform(0.5, 2.0, 2) if seed % 3 == 1 else rng.dirichlet([2, 2]),
    )


def random_cases(min_rows=1, spread=0.4):
    """Strategy of random steps."""
    return st.builds(
        random_case,
        st.integers(0, 2**32 - 1),
        rows=st.integers(min_rows, 9),
        width=st.integers(1, 6),
        spread=st.just(spread),
    )


def compute_advantages(variant, *args, **inputs):
    """`gv.advantages`, with a memory that is empty for a rule that remembers."""
    variant = gv.get(variant) if isinstance(variant, str) else variant
    return gv.advantages(variant, *args, **inputs, **({"state": gv.Memory()} if variant.remembers else {}))


def with_advantages(case, variant, dtype=torch.float64):
    """The case with the variant's own advantages in it."""
    return replace(case, advantages=compute_advantages(variant, case.rollouts(dtype)).numpy())


def with_row_weights(variant, case, counts):
    """The case with prompt_mean's weights, which a micro-batch cannot compute."""
    lengths = torch.as_tensor(case.mask).sum(1).double()
    return replace(case, row_weights=gv.row_weights(variant, lengths, counts, case.groups).numpy())


def token_advantages(case, seed=0):
    """The case with one advantage per token, of both signs."""
    return replace(case, advantages=np.random.default_rng(seed).normal(size=case.mask.shape))


def counts_for(variant, case):
    """Counts of the case as a whole step, where the variant cannot count alone; else None."""
    if resolved_values(variant).get("aggregation.length", LENGTH) is None:
        return gv.Counts.of(torch.as_tensor(case.mask), case.groups, length=LENGTH)
    return None


def loss_and_gradient(variant, case, dtype=torch.float64, counts=None, **changes):
    """Loss, gradient with respect to logp, and everything that `policy_loss` returned."""
    x = case.tokens(dtype, **changes)
    out = gv.policy_loss(variant, x, counts or counts_for(variant, case))
    out.loss.backward()
    return out.loss.detach(), x.logp.grad, out


# Values of every field that a spec string can set, small enough to matter for the cases above.
FIELD_VALUES = {
    **cases_objectives.FIELD_VALUES,
    "baseline.forgetting": (0.5, 0.875, 1.0),
    "baseline.prior": (0.5, 2.0),
    "baseline.process": (0.0, 1e-5, 0.1),
    "baseline.measurement": (1e-2, 1.0),
    "baseline.mean": (0.0, 0.5),
    "baseline.variance": (0.5, 1.0),
    "credit.eps": (1e-8, 1e-4, 0.1),
    "credit.ddof": (0, 1),
    "credit.over": ("responses", "tokens"),
    "credit.eps_in": ("std", "var", "floor"),
    "credit.base": (0.5, 1.0),
    "credit.bonus": (0.0, 0.1, 1.0),
    "credit.above": (0.0, 0.4),
    "credit.tail": ("zero", "own"),
    "selection.keep": (1, 2, 8),
    "selection.share": (0.25, 0.5),
    "selection.over": ("group", "batch"),
    "transform.right": (0.1, 1.0),
    "transform.wrong": (-1.0, 0.0),
    "transform.above": (0.0, 0.5),
    "transform.k": (1, 2, 4),
    "transform.penalty": (0.25, 1.0),
    "transform.of": ("mean", "sum"),
    "transform.first": ("zero", "one"),
    "baseline.level": (0.1, 0.4, 0.75),
    "baseline.even": ("lower", "mean"),
    "baseline.interpolation": ("inverse", "linear"),
    "baseline.tau": (0.01, 0.5),
    "baseline.floor": (None, 1e-8, 0.1),
    "scale.cap": (0.5, 1e6),
    "scale.even": ("lower", "mean"),
    "scale.compensate": ("none", "group"),
    "scale.mean": ("keep", "subtract"),
    "scale.eps": (0.0, 1e-6, 0.3),
    "scale.ddof": (0, 1),
    "scale.of": ("raw", "centred"),
    "scale.over": ("responses", "tokens"),
    "scale.eps_in": ("std", "var", "floor"),
    "credit.gamma": (0.5, 0.9, 1.0),
    "ratio.bound_low": (None, 0.1, 20.0),
    "ratio.bound_high": (None, 0.15, 20.0),
    "ratio.anchor": ("old", "rollout"),
    "surrogate.low": (0.0, 0.1, 0.2),
    "surrogate.high": (0.0, 0.15, 0.28),
    "surrogate.dual": (None, 1.1, 3.0),
    "kl.beta": (0.0, 0.1, 1.0),
    "kl.placement": ("loss", "reward"),
    "kl.gradient": ("own", "k2"),
    "kl.weighted": ("none", "ratio"),
    "kl.bound": (None, 0.2, 20.0),
    "kl.value_bound": (None, 0.05, 10.0),
    "kl.exempt": (None, 0.3),
    "correction.cap": (1.1, 2.0),
    "correction.floor": (0.0, 0.9),
    "correction.low": (None, 0.8),
    "correction.high": (1.2, 2.0),
    "correction.threshold": (0.05, 0.3),
    "aggregation.rows": ("all", "signal"),
    "aggregation.empty_rows": ("count", "exclude"),
    "aggregation.length": (None, 12.0),
    "aggregation.alpha": (0.0, 0.75, 1.0),
    "tokens.fraction": (0.2, 0.5),
    "tokens.denominator": ("all", "kept"),
    "filter.metric": (None, "accuracy"),
    "filter.max_rounds": (0, 10, None),
    "overlong.statistics": ("keep", "drop"),
    "overlong.buffer": (16, 4096),
    "overlong.factor": (0.5, 1.0),
}
# Of one choice, where another one of its axis has a field of the same name.
CHOICE_VALUES = {("entropy_responses", "over"): ("group", "side")}


def keys_of(axis, choice):
    """The field keys of a choice, as a spec string names them; a joined correction's carry the choice."""
    words = choice.split("+")
    for word in words:
        part = AXES[axis].choices[word]
        if isinstance(part, type):
            for field in fields(part):
                yield f"{axis}.{word}.{field.name}" if len(words) > 1 else f"{axis}.{field.name}", field


def values_of(key, choice=None):
    """Values to try for a field key, of a choice where that matters."""
    axis, *_, field = key.split(".")
    return CHOICE_VALUES.get((choice, field), FIELD_VALUES[f"{axis}.{field}"])


def text(value):
    return "none" if value is None else str(value)


@st.composite
def choices_of(draw, axis):
    """A choice of an axis, or two that are joined by a plus."""
    table = AXES[axis]
    words = [word for word in table.choices if word != "none"]
    if table.joins and draw(st.booleans()):
        return "+".join(draw(st.permutations(words))[:2])
    return draw(st.sampled_from(list(table.choices)))


@st.composite
def random_specs(draw):
    """Spec strings with options on some axes; not every combination means something."""
    options = {}
    for axis in draw(st.lists(st.sampled_from(list(AXES)), unique=True, max_size=6)):
        options[axis] = draw(choices_of(axis))
        for key, field in keys_of(axis, options[axis]):
            if field.default is MISSING or draw(st.booleans()):
                options[key] = text(draw(st.sampled_from(values_of(key, options[axis]))))
    return ",".join([draw(st.sampled_from(gv.names())), *(f"{key}={value}" for key, value in options.items())])


REFUSALS = (
    *(fence.takes.partition("{")[0] for fence in FENCES),
    "kl.placement='reward' has no gradient through the penalty",
    "chooses tokens of the loss by their entropy",
    "scale.over='tokens' whitens the centred advantages",
    "correction.low and correction.high are both none",
    "singleton=raw has no effect",
    "scale.over='tokens' subtracts the mean over tokens already",
    "transform.right and transform.wrong are both",
    *cases_objectives.REFUSALS,
)


def variant_or_none(spec):
    """The variant of a random spec string, or None where the combination is refused for a reason that is known."""
    try:
        return gv.get(spec)
    except ValueError as error:
        if not any(reason in str(error) for reason in REFUSALS):
            raise
        return None


random_variants = random_specs().map(variant_or_none).filter(lambda variant: variant is not None)


# Scales that go with any baseline.
ANY_SCALE = [s for s in AXES["scale"].choices if s not in ("kalman_std", "smoothed_std")]
WHITEN = "scale=batch_std,scale.of=centred,scale.over=tokens"
RETURNS = "credit=reward_to_go"
IN_REWARD = "kl.placement=reward,kl.beta=0.3"
# Together with the registered variants, these set every choice and every field that the core computes with; a test of
# the oracle says which one is missing.
OVER = ("group", "batch")
SPECS = (
    # baselines, bare and scaled
    *(f"rloo,baseline={b}" for b in AXES["baseline"].choices),
    *(f"grpo,baseline={b},scale.eps=0.2" for b in AXES["baseline"].choices),
    # scales
    *(
        f"grpo,scale.ddof={ddof},scale.eps_in={where},scale.eps=0.1"
        for ddof in (0, 1)
        for where in ("std", "var", "floor")
    ),
    *(f"grpo,scale=batch_std,scale.of={of},scale.ddof=0" for of in ("raw", "centred")),
    *(f"rloo,scale=batch_std,scale.of={of},scale.eps_in=var,scale.eps=0.1" for of in ("raw", "centred")),
    "reinforce_pp_baseline,scale.eps=0.4",
    *(f"{name},{WHITEN},scale.ddof={ddof}" for name in ("grpo", "rloo", "remax") for ddof in (0, 1)),
    "reinforce,scale=batch_std,scale.mean=subtract,scale.of=centred,scale.eps=0.1",
    "grpo,scale=group_mad,scale.eps=0.3",
    "grpo,scale=group_mad,singleton=raw,baseline=none",
    "grpo,baseline=group_median,baseline.even=mean,scale=group_mad,scale.even=mean,scale.compensate=group",
    "grpo,scale=group_mad,scale.eps=0,scale.compensate=group",
    "grpo,scale=beta_density,scale.cap=0.7",
    *(f"grpo,baseline=group_quantile,baseline.level={q},baseline.interpolation=linear" for q in (0.3, 0.8)),
    *(f"{name},scale={s}" for name in ("reinforce", "rloo") for s in ANY_SCALE),
    "reinforce,baseline=tracked,baseline.forgetting=0.5,baseline.prior=2",
    "reinforce,baseline=tracked,scale=batch_std,scale.of=centred,scale.mean=subtract",
    "reinforce,baseline=kalman,baseline.process=0.1,baseline.measurement=1,baseline.mean=0.5,baseline.variance=0.5",
    "reinforce,baseline=kalman,scale=kalman_std,scale.eps=0.1",
    "grpo,baseline=kalman,baseline.process=0.1,baseline.measurement=1,baseline.variance=0.5,scale=kalman_std",
    "krpo,baseline.process=0.5,baseline.measurement=0.2",
    *(f"grpo,scale=smoothed_std,scale.ddof={ddof}" for ddof in (0, 1)),
    *(f"grpo,baseline=partition,baseline.tau={t},baseline.floor={f}" for t in (0.01, 0.5) for f in (1e-3, "none")),
    # selections and transforms
    *(f"grpo,selection=max_variance,selection.keep={k}" for k in (1, 2, 3)),
    *(f"grpo,selection=largest_advantage,selection.share={s},selection.over={o}" for s in (0.3, 0.7) for o in OVER),
    "reinforce,selection=mixed",
    "grpo,selection=mixed,scale=batch_std",
    *(f"grpo,selection={s},selection.keep={k}" for s in ("shortest", "efficient") for k in (1, 2)),
    *(f"rloo,transform=pass_at_k,transform.k={k}" for k in (1, 2, 3)),
    "grpo,transform=pass_at_k,scale=bernoulli",
    "rloo,transform=signed",
    "rloo,transform=unlikeliness,transform.of=sum",
    "rloo,transform=unlikeliness,transform.first=one",
    "grpo,transform=unlikeliness,transform.penalty=1",
    "grpo,transform=signed,transform.right=0.1,transform.wrong=0,transform.above=0.3",
    # credit
    *(f"grpo_process,baseline={b},scale={s}" for b in ("none", "group_mean", "batch_mean") for s in ANY_SCALE),
    "grpo_process,scale.ddof=0,scale.eps_in=var,scale.eps=0.1,singleton=raw",
    "grpo_process,scale=batch_std,scale.of=centred,aggregation=prompt_mean",
    *(
        f"dapo,{RETURNS},baseline={b},scale={s},credit.gamma=0.8"
        for b in AXES["baseline"].choices
        if b != "tracked"
        for s in ("none", "group_std")
    ),
    *(f"dr_grpo,{RETURNS},credit.gamma=0.9,{WHITEN},baseline={b}" for b in ("none", "group_mean")),
    f"dapo,{RETURNS},scale=batch_std,scale.of=raw,ratio=sequence_token",
    f"dapo,{RETURNS},singleton=raw",
    *(f"grpo,credit=decoupled,credit.ddof={ddof},credit.over={o}" for ddof in (0, 1) for o in ("responses", "tokens")),
    *(f"rloo,credit=decoupled,credit.eps_in={where},credit.eps=0.2" for where in ("var", "floor")),
    *(f"reinforce,credit={c},credit.base=0.5,credit.bonus=0.3" for c in ("entropy_tokens", "entropy_responses")),
    "reinforce,credit=entropy_responses,credit.bonus=0.3,credit.over=side",
    "reinforce,credit=entropy_tokens,credit.above=0.4,credit.eps=0.1",
    "reinforce,credit=entropy_tokens",
    *(f"reinforce,credit=optimal_token,credit.tail={t},credit.eps=0.1" for t in ("zero", "own")),
    f"reinforce,credit=optimal_token,kl=k1,{IN_REWARD}",
    "reinforce,credit=optimal_token,singleton=raw",
    # KL in the reward
    *(f"grpo,{RETURNS},kl={k},{IN_REWARD},credit.gamma=0.9" for k in ("k1", "k2", "k3", "abs")),
    *(f"rloo,kl={k},{IN_REWARD},kl.bound=0.2,kl.value_bound=0.1" for k in ("k1", "k2", "k3", "abs")),
    f"grpo,kl=k1,{IN_REWARD},kl.bound=none",
    # singletons
    *(f"{name},singleton={s}" for name in ("rloo", "grpo", "dr_grpo") for s in ("zero", "raw")),
    "grpo,baseline=none,singleton=raw",
    "grpo,baseline=length_weighted,singleton=raw",
    # ratios
    *(f"rloo,ratio={r}" for r in AXES["ratio"].choices),
    *(f"grpo,ratio={r},ratio.bound_low=0.1,ratio.bound_high=0.2" for r in AXES["ratio"].choices if r != "none"),
    *(f"grpo,ratio={r},ratio.anchor=rollout" for r in AXES["ratio"].choices if r != "none"),
    "grpo,ratio.bound_low=none,ratio.bound_high=0.2",
    "grpo,ratio.bound_low=0.2,ratio.bound_high=none",
    "gspo,ratio.bound_low=none,ratio.bound_high=none",
    # surrogates
    "grpo,surrogate.low=0.05,surrogate.high=0.5",
    "grpo,surrogate.low=0,surrogate.high=0",
    "grpo,surrogate.dual=1.3",
    "gspo,surrogate.dual=1.1",
    "gspo,surrogate=reinforce",
    "grpo,surrogate=reinforce,ratio.bound_high=0.1",
    # KL in the loss
    *(f"grpo,kl={k},kl.beta=0.5,kl.gradient={g}" for k in ("k1", "k2", "k3", "abs") for g in ("own", "k2")),
    *(f"dapo,kl={k},kl.beta=0.5,kl.weighted=ratio,kl.gradient=k2" for k in ("k1", "k2", "k3", "abs")),
    *(f"rloo,kl={k},kl.beta=0.5,kl.weighted=ratio" for k in ("k1", "k3")),
    *(f"gspo,kl={k},kl.beta=0.5,kl.weighted=ratio" for k in ("k2", "abs")),
    *(f"grpo,kl={k},kl.beta=0.5,kl.bound=0.2,kl.value_bound=0.1" for k in ("k1", "k2", "k3", "abs")),
    "grpo,kl.beta=0.5,kl.bound=0.2,kl.value_bound=0.01,kl.gradient=k2",
    "grpo,kl.bound=none",
    "grpo,kl.beta=0",
    # corrections
    *(f"grpo,correction={unit}_truncate,correction.cap=1.2" for unit in ("token", "sequence", "geometric")),
    *(f"grpo,correction={unit}_truncate,correction.floor=0.8" for unit in ("token", "sequence", "geometric")),
    *(
        f"gspo,correction={unit}_mask,correction.low=0.8,correction.high=1.3"
        for unit in ("token", "sequence", "geometric")
    ),
    "grpo,correction=token_mask,correction.low=none,correction.high=1.2",
    "grpo,correction=geometric_mask,correction.low=0.9,correction.high=none",
    "grpo,correction=off_policy_mask,correction.threshold=0.05",
    f"grpo,{RETURNS},correction=off_policy_mask,correction.threshold=0.05",
    "dapo,correction=geometric_mask+token_truncate,correction.low=0.8,correction.high=1.2,correction.cap=1.1",
    "dapo,correction=token_truncate+sequence_truncate,correction.token_truncate.cap=1.1,correction.sequence_truncate.cap=1.5",
    "gspo,correction=off_policy_mask+sequence_mask,correction.threshold=0.1,correction.low=0.5,correction.high=3",
    # aggregations
    *(f"grpo,aggregation={a}" for a in AXES["aggregation"].choices),
    *(f"rloo,aggregation={a},aggregation.empty_rows=exclude" for a in ("sequence_mean", "constant", "sequence_sum")),
    "dr_grpo,aggregation.length=12.5",
    "delta_l,aggregation.alpha=1,aggregation.length=12.5",
    "grpo,aggregation=length_power,tokens=top_entropy",
    "dapo,aggregation.rows=signal,kl=k3,kl.beta=0.5",
    f"dapo,{RETURNS},aggregation.rows=signal,baseline=none",
    # token filter
    "grpo,tokens=top_entropy",
    *(
        f"{name},tokens=top_entropy,tokens.fraction=0.5,tokens.denominator=kept"
        for name in ("grpo", "dapo", "gspo", "rloo")
    ),
    "dapo,aggregation=prompt_mean,tokens=top_entropy,tokens.denominator=kept",
    "grpo,tokens=top_entropy,tokens.denominator=kept,aggregation.empty_rows=exclude,correction=token_truncate",
    # conventions
    *(f"{name},conventions={c}" for name in gv.names() for c in ("trl", "verl")),
    *cases_objectives.SPECS,
)
