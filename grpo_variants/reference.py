r"""The family in plain NumPy: float64, loops left to NumPy, gradients written out. It imports nothing of this package.

Read this first. It says in a few lines what the rest says for every variant, trainer and shape, and the tests hold the
two to each other. Symbols: P prompts, G responses per prompt, N = P G responses, T tokens, A strategies of a toy task;
\(\rho = e^{\mathrm{logp} - \mathrm{old}}\).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

AGGREGATIONS = ("seq_mean", "token_mean", "const")


def rloo_advantages(rewards: ArrayLike) -> Array:
    r"""Reward less the mean of the other responses to the prompt.

    \(A_i = r_i - \frac{1}{G-1}\sum_{j \ne i} r_j = \frac{G}{G-1}(r_i - \bar r)\); 0 for a group of one.
    [P, G] -> [P, G]. Source: Kool et al. (2019); Ahmadian et al., arXiv 2402.14740.
    """
    centred = _centred(rewards)
    size: int = centred.shape[1]
    return centred * (size / max(size - 1, 1))


def group_advantages(rewards: ArrayLike, normalize_std: bool = True, eps: float = 1e-6) -> Array:
    r"""Reward less the group's mean, divided by the group's sample standard deviation.

    \(A_i = (r_i - \bar r) / (s + \epsilon)\) with \(s^2 = \frac{1}{G-1}\sum_j (r_j - \bar r)^2\); without
    `normalize_std` only the numerator (Dr. GRPO). A group of equal rewards, or of one, gives exactly 0.
    [P, G] -> [P, G]. Source: Shao et al., arXiv 2402.03300; Liu et al., arXiv 2503.20783.
    """
    centred = _centred(rewards)
    if not normalize_std:
        return centred
    std = np.sqrt((centred**2).sum(1, keepdims=True) / max(centred.shape[1] - 1, 1))
    flat = std == 0
    return np.where(flat, 0.0, centred / np.where(flat, 1.0, std + eps))


def grpo_loss(
    logp: ArrayLike,
    logp_old: ArrayLike,
    logp_ref: ArrayLike | None,
    adv: ArrayLike,
    mask: ArrayLike,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    beta: float = 0.04,
    agg: str = "seq_mean",
    max_len: float | None = None,
) -> tuple[float, Array]:
    r"""GRPO's loss and its gradient with respect to `logp`.

    \(L = \sum_i w_i \sum_t m_{it} [-\min(\rho_{it} A_i, \mathrm{clip}(\rho_{it}, 1 - \epsilon_{low},
    1 + \epsilon_{high}) A_i) + \beta\,(e^{u_{it}} - u_{it} - 1)]\) with \(u = \mathrm{ref} - \mathrm{logp}\).
    agg sets \(w_i\): seq_mean \(1/(N l_i)\) (GRPO), token_mean \(1/\sum_j l_j\) (DAPO), const
    \(1/(N\,\mathrm{max\_len})\) (Dr. GRPO).
    logp, logp_old, logp_ref, mask: [N, T]; adv: [N] or [N, T]; logp_ref may be None where beta is 0. What stands
    under the mask is not read, NaN included. Returns (loss, gradient [N, T]).
    Raises ValueError for an unknown agg, for const without max_len and for a KL without reference.
    Source: Shao et al., arXiv 2402.03300; Yu et al., arXiv 2503.14476; Liu et al., arXiv 2503.20783.
    """
    m = np.asarray(mask).astype(bool)
    lp, old = _padded(logp, m), _padded(logp_old, m)
    a = np.asarray(adv, float)
    a = _padded(a[:, None] if a.ndim == 1 else a, m)
    ratio = np.exp(lp - old)
    # The minimum takes the clipped product only beyond the bound on the side that A pushes to.
    clipped = np.where(a > 0, ratio > 1 + eps_high, ratio < 1 - eps_low) & (a != 0)
    token_loss = -np.where(clipped, np.clip(ratio, 1 - eps_low, 1 + eps_high), ratio) * a
    gradient = -np.where(clipped, 0.0, ratio) * a
    if beta != 0:
        if logp_ref is None:
            raise ValueError(f"beta={beta!r} needs logp_ref; give it, or beta=0.")
        u = _padded(logp_ref, m) - lp
        token_loss += beta * (np.expm1(u) - u)
        gradient += beta * -np.expm1(u)
    weight = _weights(m, agg, max_len) * m
    return float((weight * token_loss).sum()), weight * gradient


def group_update(z: ArrayLike, actions: ArrayLike, rewards: ArrayLike, lr: float) -> Array:
    r"""One step of REINFORCE with the group-mean baseline on the logits of one prompt.

    \(z \leftarrow z + \eta\,\frac{1}{G}\sum_i (r_i - \bar r)(e_{a_i} - \pi)\) with \(\pi = \mathrm{softmax}(z)\).
    z: [A]; actions: [G] whole numbers in [0, A); rewards: [G]. Returns [A]; z is not changed.
    Source: Liu et al., arXiv 2503.20783 (the advantage without standard deviation).
    """
    logits = np.asarray(z, float)
    advantage = _centred(np.asarray(rewards, float)[None])[0]
    score = np.eye(len(logits))[np.asarray(actions, int)] - _softmax(logits)
    step: Array = lr * (advantage[:, None] * score).mean(0)
    return logits + step


def train(S: ArrayLike, steps: int, G: int, lr: float, seed: int) -> tuple[Array, list[float]]:
    r"""Train a table of logits with group updates on a toy task where strategy a solves prompt p with chance S[p, a].

    Each step draws G strategies a prompt from \(\mathrm{softmax}(z_p)\), a reward of 1 with probability S[p, a] else
    0, and takes one `group_update`; z starts at 0.
    S: [P, A]. Returns the policy [P, A] and the expected accuracy
    \(\frac{1}{P}\sum_p \sum_a \pi(a \mid p) S[p, a]\) before each step and after the last, steps + 1 numbers.
    """
    chance = np.asarray(S, float)
    random = np.random.default_rng(seed)
    z = np.zeros_like(chance)
    curve = [_accuracy(z, chance)]
    for _ in range(steps):
        for p, policy in enumerate(_softmax(z)):
            actions = random.choice(len(policy), size=G, p=policy)
            rewards = random.random(G) < chance[p, actions]
            z[p] = group_update(z[p], actions, rewards, lr)
        curve.append(_accuracy(z, chance))
    return _softmax(z), curve


def _centred(rewards: ArrayLike) -> Array:
    """Rewards [P, G] less their group's mean; exactly 0 where a group's rewards are equal, whatever rounding does."""
    r = np.asarray(rewards, float)
    if r.ndim != 2:
        raise ValueError(f"rewards has shape {r.shape}; allowed: [P, G], a row for each prompt.")
    equal = r.min(1, keepdims=True) == r.max(1, keepdims=True)
    return np.where(equal, 0.0, r - r.mean(1, keepdims=True))


def _padded(value: ArrayLike, mask: NDArray[np.bool_]) -> Array:
    """Zero under the mask, by selection: NaN times 0 would stay NaN."""
    return np.where(mask, np.asarray(value, float), 0.0)


def _weights(mask: NDArray[np.bool_], agg: str, max_len: float | None) -> Any:
    """Weight of each response, [N, 1] or one number."""
    if agg == "seq_mean":
        return 1 / (len(mask) * np.maximum(mask.sum(1, keepdims=True), 1))
    if agg == "token_mean":
        return 1 / max(mask.sum(), 1)
    if agg != "const":
        raise ValueError(f"agg={agg!r} is unknown; allowed: {', '.join(AGGREGATIONS)}.")
    if max_len is None:
        raise ValueError("agg='const' needs max_len, the maximum completion length.")
    return 1 / (len(mask) * max_len)


def _softmax(z: Array) -> Array:
    shifted = np.exp(z - z.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))


def _accuracy(z: Array, chance: Array) -> float:
    return float((_softmax(z) * chance).sum(1).mean())
