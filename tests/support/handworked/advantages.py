"""Members that differ in the advantage, worked by hand; the notation is that of handworked/variants.py."""

from __future__ import annotations

from math import pi
from typing import Any

from support.handworked.case import PAIR, PAIR_KL, Case, _, logs, numbers

# What the members share: their losses, with advantages 1.5 and -0.5 of two responses of 3 and 2 tokens.
# Policy terms -min(rho A, clip(rho, 0.8, 1.2) A):
#   A = 1.5:  rho 2 -> -1.8 (clipped); 1.1 -> -1.65; 0.5 -> -0.75. Sum -4.2.
#   A = -0.5: rho 0.5 -> 0.4 (clipped); 2 -> 1.0. Sum 1.4.
OFF_POLICY: dict[str, Any] = {"policy": PAIR["policy"], "old": PAIR["old"], "given": [1.5, -0.5]}
# Token mean: L = -2.8/5. Gradient: 0, -1.65/5, -0.75/5 | 0, 1/5.
CLIP_TOKEN_MEAN: dict[str, Any] = {**OFF_POLICY, "loss": -0.56, "gradient": [[0, -0.33, -0.15], [0, _, 0.2]]}
# The same with a response between the two that has no advantage and leaves the count.
KEPT_TOKEN_MEAN: dict[str, Any] = {
    "policy": [PAIR["policy"][0], [0.3, 0.6, _], PAIR["policy"][1]],
    "old": [PAIR["old"][0], [0.6, 0.3, _], PAIR["old"][1]],
    "given": [1.5, 0, -0.5],
    "loss": -0.56,
    "gradient": [[0, -0.33, -0.15], [0, 0, _], [0, _, 0.2]],
}
# Sequence mean: L = (-4.2/3 + 1.4/2)/2. Gradient: 0, -1.65/6, -0.75/6 | 0, 1/4.
CLIP_SEQUENCE_MEAN: dict[str, Any] = {**OFF_POLICY, "loss": -0.35, "gradient": [[0, -0.275, -0.125], [0, _, 0.25]]}
# No ratio: old is not read. With ln 0.022 = -3.816712825624 and ln 0.06 = -2.813410716760
#   L = -(1.5 * -3.816712825624 - 0.5 * -2.813410716760)/5 = 4.318363880056/5. Gradient -A/5.
SCORE_TOKEN_MEAN: dict[str, Any] = {
    **OFF_POLICY,
    "loss": 0.863672776011,
    "gradient": [[-0.3, -0.3, -0.3], [0.1, _, 0.1]],
}
# The same over N = 2 responses: 4.318363880056/2. Gradient -A/2.
SCORE_SEQUENCE_SUM: dict[str, Any] = {
    **OFF_POLICY,
    "loss": 2.159181940028,
    "gradient": [[-0.75, -0.75, -0.75], [0.25, _, 0.25]],
}

# The policy terms of CLIP_TOKEN_MEAN and 0.001 k3. Summed over tokens k3 is 0.5 | ln(4/3) = 0.287682072452 (see PAIR).
# L = (-2.8 + 0.001 * 0.787682072452)/5. Gradient of k3 is 1 - e^u: -1, 0.5, 0 | 0.5, -0.5.
CLIP_AND_KL_TOKEN_MEAN: dict[str, Any] = {
    **PAIR,
    "given": [1.5, -0.5],
    "loss": -0.559842463586,
    "gradient": [[-0.0002, -0.3299, -0.15], [0.0001, _, 0.1999]],
}

# One advantage per token: A = 1, rho 2 -> -1.2 (clipped); A = 1, rho 1.1 -> -1.1; A = -0.5, rho 0.5 -> 0.4 (clipped).
# A = -1, rho 0.5 -> 0.8 (clipped); A = -0.5, rho 2 -> 1.0. L = (-1.9 + 1.8)/5. Gradient: 0, -1.1/5, 0 | 0, 1/5.
TOKENS_TOKEN_MEAN: dict[str, Any] = {
    "policy": PAIR["policy"],
    "old": PAIR["old"],
    "given": [[1, 1, -0.5], [-1, _, -0.5]],
    "loss": -0.02,
    "gradient": [[0, -0.22, 0], [0, _, 0.2]],
}

RAW_STD = 1.000001
LOO_STD = 3.125**0.5 + 1e-6
PASS_STD = 14**0.5 / 15 + 1e-6
QAE_STD = 0.3**0.5 + 1e-6
BETA = 8 * 0.1875**0.5 / pi

# GDPO: of two rewards that differ by d, half of d over its deviation d/sqrt(2).
FIRST, SECOND = 0.5 / (0.5**0.5 + 1e-4), 1 / (2**0.5 + 1e-4)
SUMS = (FIRST - SECOND / 2, SECOND / 2)
GDPO_STD = (2 * (SUMS[0] ** 2 + SUMS[1] ** 2) / 3) ** 0.5 + 1e-4
# GTPO: shares of two wrong tokens with entropies 1 and 1/2, of an inverse with 1e-8 in it; they add up to 2.
LOW = 2 / (1 + 1e-8) / (1 / (1 + 1e-8) + 1 / (0.5 + 1e-8))
GTPO_WRONG = 0.1 * (1 - LOW) / (0.1 * (1 - LOW) * 2**0.5 + 1e-8)
GRPO_S_SHAPED = (1.05, 1.1, 1.15, -1 - 0.1 * LOW, -1.2 + 0.1 * LOW)
GRPO_S_STD = (sum((r - 0.22) ** 2 for r in GRPO_S_SHAPED) / 4) ** 0.5 + 1e-8

# KRPO: the filter starts at x = 0, P = 1; Q = 1e-5, R = 1e-2.
GAIN_1 = 1.00001 / 1.01001
LEFT_1 = (1 - GAIN_1) * 1.00001
GAIN_2 = (LEFT_1 + 1e-5) / (LEFT_1 + 0.01001)
LEFT_2 = (1 - GAIN_2) * (LEFT_1 + 1e-5)
STATE_2 = GAIN_1 + GAIN_2 * (0 - GAIN_1)

CASES: dict[str, Case] = {
    "opo": Case(
        # Group a, rewards 0, 1, 3 of 1, 2, 3 tokens: (0 + 2 + 9)/6 = 11/6. Group b, rewards 1, 0 of 3, 1: 3/4.
        rollouts={"rewards": [0, 1, 1, 0, 3], "groups": ["a", "b", "a", "b", "a"], "lengths": [1, 3, 2, 1, 3]},
        advantages=[-11 / 6, 0.25, -5 / 6, -0.75, 7 / 6],
        **SCORE_TOKEN_MEAN,
    ),
    "lite_ppo": Case(
        # Group a, rewards 0, 1: mean 1/2. Group b, rewards 0, 2, 2: mean 4/3. All five: mean 1, variance 4/4 = 1.
        rollouts={"rewards": [0, 0, 1, 2, 2], "groups": ["a", "b", "a", "b", "b"]},
        advantages=[n / RAW_STD for n in (-0.5, -4 / 3, 0.5, 2 / 3, 2 / 3)],
        **CLIP_TOKEN_MEAN,
    ),
    "agapo": Case(
        # Leave-one-out as in rloo: -2, -0.5, 2.5 | 1, -1. They add up to 0; squares 4 + 0.25 + 6.25 + 1 + 1 = 12.5,
        # variance 12.5/4 = 3.125.
        rollouts={"rewards": [0, 1, 1, 0, 3], "groups": ["a", "b", "a", "b", "a"]},
        advantages=[n / LOO_STD for n in (-2, 1, -0.5, -1, 2.5)],
        **SCORE_SEQUENCE_SUM,
    ),
    "cppo": Case(
        # Group a: mean 3/4, deviations 5/4, 1/4, -3/4, -3/4, variance 2.75/3; the largest are the first and, of two
        # that are equal, the third. Group b: mean 3/4, deviations 1/4 three times and -3/4, variance 1/4; the first and
        # the last.
        rollouts={"rewards": [2, 1, 0, 0, 1, 1, 1, 0], "groups": [*"aaaabbbb"]},
        advantages=[
            *(1.25 / ((2.75 / 3) ** 0.5 + 1e-4), 0, -0.75 / ((2.75 / 3) ** 0.5 + 1e-4), 0),
            *(0.25 / 0.5001, 0, 0, -0.75 / 0.5001),
        ],
        # As CLIP_AND_KL_TOKEN_MEAN with 0.04 in place of 0.001.
        **PAIR,
        given=[1.5, -0.5],
        loss=(-2.8 + 0.04 * 0.787682072452) / 5,
        gradient=[[-0.04 / 5, (-1.65 + 0.02) / 5, -0.15], [0.02 / 5, _, (1 - 0.02) / 5]],
    ),
    "pods": Case(
        # Ten wrong, eight right: with all of the highest 16 and with 8 of each the variance is 1/4, so the highest. The
        # first two wrong ones are out; mean 1/2, variance 16 (1/4) / 15.
        rollouts={"rewards": [0] * 10 + [1] * 8, "groups": ["a"] * 18},
        advantages=[n / ((4 / 15) ** 0.5 + 1e-4) for n in [0] * 2 + [-0.5] * 8 + [0.5] * 8],
        **CLIP_SEQUENCE_MEAN,
    ),
    "unlikeliness": Case(
        # Mean log-probabilities of old ln 0.5, ln 0.8, ln 0.9 (the mean of 0.81 and 1), ln 0.4: places 1, 2, 3, 0 of 4.
        # Rewards 1 - 0.25/4, 1 - 0.5/4, 0, 1: mean 2.8125/4 = 0.703125. Deviations 0.234375, 0.171875, -0.703125,
        # 0.296875, squares 0.0549316..., 0.0295410..., 0.4943848..., 0.0881348..., sum 0.6669921875; its third is the
        # variance. The sum would put the third response at 0.81, in the same place.
        rollouts={
            "rewards": [1, 1, 0, 1],
            "groups": [*"aaaa"],
            "old_logp": logs([[0.5, 0.5], [0.8, 0.8], [0.81, 1.0], [0.4, _]]).nan_to_num(0.0),
            "mask": [[True, True], [True, True], [True, True], [True, False]],
        },
        advantages=[n / ((0.6669921875 / 3) ** 0.5 + 1e-6) for n in (0.234375, 0.171875, -0.703125, 0.296875)],
        # As CLIP_AND_KL_TOKEN_MEAN with 0.1 in place of 0.001.
        **PAIR,
        given=[1.5, -0.5],
        loss=(-2.8 + 0.1 * 0.787682072452) / 5,
        gradient=[[-0.1 / 5, (-1.65 + 0.05) / 5, -0.15], [0.05 / 5, _, (1 - 0.05) / 5]],
    ),
    "maxrl": Case(
        # Group a, one right of four: mean 1/4. Group b, two of three: mean 2/3. Group c, none: 0.
        rollouts={"rewards": [1, 0, 0, 0, 1, 1, 0, 0, 0], "groups": [*"aaaa", *"bbb", *"cc"]},
        advantages=[
            *(n / 0.250001 for n in (0.75, -0.25, -0.25, -0.25)),
            *(n / (2 / 3 + 1e-6) for n in (1 / 3, 1 / 3, -2 / 3)),
            *(0, 0),
        ],
        **CLIP_TOKEN_MEAN,
    ),
    "gpg": Case(
        # Groups a (1, 0) and c (0, 0, 1) have a signal, b (1, 1, 1) has none: 8/(8 - 3) = 1.6.
        rollouts={"rewards": [1, 0, 1, 1, 1, 0, 0, 1], "groups": [*"aa", *"bbb", *"ccc"]},
        advantages=[0.8, -0.8, 0, 0, 0, -1.6 / 3, -1.6 / 3, 3.2 / 3],
        **SCORE_TOKEN_MEAN,
    ),
    "passk": Case(
        # Group a, rewards 0, 1, 3: the best leads by 2. Group b, 2, 2: a tie. Group c, -1, 0.5: by 1.5.
        rollouts={"rewards": [0, 1, 3, 2, 2, -1, 0.5], "groups": [*"aaa", *"bb", *"cc"]},
        advantages=[0, 0, 2, 0, 0, 0, 1.5],
        **CLIP_TOKEN_MEAN,
    ),
    "passk_analytic": Case(
        # Six responses, two right, k = 4. R = 1 - C(4,4)/C(6,4) = 14/15, sqrt(R (1 - R)) = sqrt(14)/15.
        # Right: 1 - R = 1/15. Wrong: 1 - C(3,3)/C(5,3) - R = 9/10 - 14/15 = -1/30. Group b, all right: 0.
        rollouts={"rewards": [1, 0, 0, 1, 0, 0, 1, 1], "groups": [*"aaaaaa", *"bb"]},
        advantages=[*(n / PASS_STD for n in (1 / 15, -1 / 30, -1 / 30, 1 / 15, -1 / 30, -1 / 30)), 0, 0],
        **CLIP_TOKEN_MEAN,
    ),
    "mc_grpo": Case(
        # Group a, rewards 0, 1, 4, 2, 2: median 2, distances 2, 1, 2, 0, 0 with median 1.
        # Group b, rewards 1, 0, 0: median 0, distances 1, 0, 0 with median 0: only 0.001 divides.
        rollouts={"rewards": [0, 1, 4, 2, 2, 1, 0, 0], "groups": [*"aaaaa", *"bbb"]},
        advantages=[-2 / 1.001, -1 / 1.001, 2 / 1.001, 0, 0, 1000, 0, 0],
        # The policy terms as in CLIP_SEQUENCE_MEAN, and 0.04 k3 (see PAIR_KL).
        **PAIR,
        given=[1.5, -0.5],
        loss=-0.35 + PAIR_KL,
        gradient=[[-0.04 / 6, -0.275 + 0.02 / 6, -0.125], [0.005, _, 0.245]],
    ),
    "qae": Case(
        # Group a, two right of five: at most 0.6, baseline 0; variance (2 * 0.36 + 3 * 0.16)/4 = 0.3.
        # Group b, three right of four: above 0.6, baseline 1; variance (3 * 0.0625 + 0.5625)/3 = 0.25.
        rollouts={"rewards": [1, 0, 0, 0, 1, 1, 1, 1, 0], "groups": [*"aaaaa", *"bbbb"]},
        advantages=[1 / QAE_STD, 0, 0, 0, 1 / QAE_STD, 0, 0, 0, -1 / 0.500001],
        # -min(rho A, clip(rho, 0.8, 1.28) A), as dapo:
        #   A = 1.5:  rho 1.25 -> -1.875; 2 -> -1.92 (clipped); 0.5 -> -0.75. Sum -4.545.
        #   A = -0.5: rho 0.5 -> 0.4 (clipped). A = -0.5: rho 2 -> 1.0; 0.9 -> 0.45. Sum 1.45.
        policy=[[0.5, 0.6, 0.1], [0.1, _, _], [_, 0.6, 0.45]],
        old=[[0.4, 0.3, 0.2], [0.2, _, _], [_, 0.3, 0.5]],
        given=[1.5, -0.5, -0.5],
        loss=-2.695 / 6,
        gradient=[[-0.3125, 0, -0.125], [0, _, _], [_, 1 / 6, 0.075]],
    ),
    "w_reinforce": Case(
        # Right where the reward is above 0.
        rollouts={"rewards": [1, 0, -1, 0.5], "groups": ["a", "a", "b", "b"]},
        advantages=[0.1, -1, -1, 0.1],
        **CLIP_TOKEN_MEAN,
    ),
    "psr": Case(
        rollouts={"rewards": [1, 0, -1, 0.5], "groups": ["a", "a", "b", "b"]},
        advantages=[1, 0, 0, 1],
        **KEPT_TOKEN_MEAN,
    ),
    "nsr": Case(
        rollouts={"rewards": [1, 0, -1, 0.5], "groups": ["a", "a", "b", "b"]},
        advantages=[0, -1, -1, 0],
        **KEPT_TOKEN_MEAN,
    ),
    "raft_pp": Case(
        rollouts={"rewards": [1, 0, -1, 1], "groups": ["a", "a", "b", "b"]},
        advantages=[1, 0, 0, 1],
        **CLIP_AND_KL_TOKEN_MEAN,
    ),
    "reinforce_rej": Case(
        # Group a is mixed, b all right, c all wrong, and d has one response.
        rollouts={"rewards": [1, 0, -1, 1, 1, -1, -1, 1], "groups": [*"aaa", *"bb", *"cc", "d"]},
        advantages=[1, 0, -1, 0, 0, 0, 0, 1],
        # SCORE_TOKEN_MEAN and 0.001 k3, as in CLIP_AND_KL_TOKEN_MEAN.
        **PAIR,
        given=[1.5, -0.5],
        loss=0.863672776011 + 0.001 * 0.787682072452 / 5,
        gradient=[[-0.3002, -0.2999, -0.3], [0.1001, _, 0.0999]],
    ),
    "bnpo": Case(
        # Means of the groups 1/2, 1/4, 3/4: m = 1/2, v = (1/16 + 1/16)/2 = 1/16, m (1 - m)/v - 1 = 3, a = b = 3/2,
        # so f is Beta(3/2, 3/2): sqrt(p (1 - p)) over B(3/2, 3/2) = Gamma(3/2)^2 / Gamma(3) = pi/8.
        # f(1/2) = 4/pi, f(1/4) = f(3/4) = 8 sqrt(3/16)/pi.
        rollouts={"rewards": [1, 0, 1, 0, 0, 0, 1, 1, 1, 0], "groups": [*"aa", *"bbbb", *"cccc"]},
        advantages=[
            *(0.5 * pi / 4, -0.5 * pi / 4),
            *(n / BETA for n in (0.75, -0.25, -0.25, -0.25, 0.25, 0.25, 0.25, -0.75)),
        ],
        # A = 1.5:  rho 2 -> -1.28 * 1.5 = -1.92 (clipped); -1.65; -0.75. Sum -4.32.
        # A = -0.5: rho 0.5 -> 0.8 * 0.5 = 0.4 (clipped); 1. Sum 1.4.
        # L = (-4.32 + 1.4) / 2. Gradient: 0, -1.65/2, -0.75/2 | 0, 1/2
        policy=PAIR["policy"],
        old=PAIR["old"],
        given=[1.5, -0.5],
        loss=-1.46,
        gradient=[[0, -0.825, -0.375], [0, _, 0.5]],
    ),
    "gfpo": Case(
        # Nine responses, the longest of 20 tokens is out. Of the eight others four are right: mean 1/2, population
        # deviation 1/2; 0.5/0.500001.
        rollouts={
            "rewards": [1, 0, 1, 1, 0, 1, 0, 1, 0],
            "groups": ["q"] * 9,
            "lengths": [4, 4, 20, 1, 2, 3, 8, 7, 5],
        },
        advantages=[n / 0.500001 for n in (0.5, -0.5, 0, 0.5, -0.5, 0.5, -0.5, 0.5, -0.5)],
        **CLIP_AND_KL_TOKEN_MEAN,
    ),
    "gdpo": Case(
        # Two reward functions of weight 1 and 1/2. Group a: 1, 0 and 0, 2. Group b: 1, 1, without a signal, and 3, 1.
        # Normalised: FIRST, -FIRST | 0, 0 and -SECOND, SECOND | SECOND, -SECOND. Sums: FIRST - SECOND/2 and SECOND/2,
        # each with its negative, of mean 0 and variance 2 (SUMS[0]^2 + SUMS[1]^2)/3.
        rollouts={
            "rewards": [[1.0, 0.0], [0.0, 2.0], [1.0, 3.0], [1.0, 1.0]],
            "groups": [*"aa", *"bb"],
            "reward_weights": [1.0, 0.5],
        },
        advantages=[n / GDPO_STD for n in (SUMS[0], -SUMS[0], SUMS[1], -SUMS[1])],
        **CLIP_SEQUENCE_MEAN,
    ),
    "gtpo_entropy": Case(
        # Two right responses with entropies 1, 3 and 3, and two wrong ones with 1 and 1/2.
        # Right, first token: shares 2 * 1/4 and 2 * 3/4, rewards 1.05 and 1.15; second: alone, share 1, reward 1.1.
        # Mean 1.1, deviations -0.05, 0 | 0.05, sample deviation 0.05.
        # Wrong: shares 2/3 and 4/3 but for 1e-8, rewards -1 - 0.1 * share; two values, +-x over x sqrt(2).
        rollouts={
            "rewards": [1, 1, 0, 0],
            "groups": ["q"] * 4,
            "mask": [[1, 1], [1, 0], [1, 0], [1, 0]],
            "entropy": numbers([[1, 3], [3, _], [1, _], [0.5, _]], float("nan")),
        },
        advantages=[[-0.05 / 0.05000001, 0], [0.05 / 0.05000001, 0], [GTPO_WRONG, 0], [-GTPO_WRONG, 0]],
        **TOKENS_TOKEN_MEAN,
    ),
    "grpo_s": Case(
        # Right responses with mean entropies 1, 2 and 3: shares 3/6, 6/6, 9/6, rewards 1.05, 1.1, 1.15. Wrong ones with
        # 1 and 1/2, as for gtpo_entropy: -1 - 0.1 LOW and -1.2 + 0.1 LOW. Together 1.1, mean 0.22.
        rollouts={
            "rewards": [1, 1, 1, 0, 0],
            "groups": ["q"] * 5,
            "mask": [[1, 1], [1, 1], [1, 0], [1, 0], [1, 0]],
            "entropy": numbers([[1, 1], [1, 3], [3, _], [1, _], [0.5, _]], float("nan")),
        },
        advantages=[(r - 0.22) / GRPO_S_STD for r in GRPO_S_SHAPED],
        # Token ratios 1.4, 0.8, 1.1: mean 1.1, -1.65. 0.4, 1: mean 0.7, with A < 0 held at 0.8: 0.4.
        # L = (-1.65 + 0.4)/2. Gradient: -A rho/3/2 = -1.5 * (1.4, 0.8, 1.1)/6 | 0.
        policy=[[0.42, 0.24, 0.55], [0.2, _, 0.6]],
        old=[[0.3, 0.3, 0.5], [0.5, _, 0.6]],
        given=[1.5, -0.5],
        loss=-0.625,
        gradient=[[-0.35, -0.2, -0.275], [0, _, 0]],
    ),
    "otb": Case(
        # Rewards 1 and 0 at the last token of two and of one. 1 - 2 pi + sum pi^2:
        #   1 - 2 * 0.5 + 0.5 = 0.5 twice, added up 0.5, 1; 1 - 2 * 0.25 + 0.5 = 1.
        # First token: (1 * 0.5 + 0 * 1)/(0.5 + 1) = 1/3, but for 1e-8. Second: one response left, baseline 0.
        rollouts={
            "rewards": [1, 0],
            "groups": ["q", "q"],
            "mask": [[1, 1], [1, 0]],
            "old_logp": logs([[0.5, 0.5], [0.25, _]]),
            "sum_pi_squared": numbers([[0.5, 0.5], [0.5, _]], float("nan")),
        },
        advantages=[[1 - 0.5 / 1.50000001, 1], [-0.5 / 1.50000001, 0]],
        **TOKENS_TOKEN_MEAN,
    ),
    "krpo": Case(
        # Group a, rewards 1, 0: x = K1, then K1 + K2 (0 - K1); P as above. Group b starts anew, reward 0: x = 0.
        rollouts={"rewards": [1, 0, 0], "groups": ["a", "b", "a"]},
        advantages=[(1 - GAIN_1) / (LEFT_1**0.5 + 1e-8), 0, -STATE_2 / (LEFT_2**0.5 + 1e-8)],
        # The policy terms as in CLIP_SEQUENCE_MEAN, and 0.01 k3 (see PAIR): mean over responses 0.155253851446.
        # L = -0.35 + 0.00155253851446. Gradient of k3: -1, 0.5, 0 | 0.5, -0.5.
        **PAIR,
        given=[1.5, -0.5],
        loss=-0.348447461486,
        gradient=[[-0.01 / 6, -1.645 / 6, -0.125], [0.00125, _, 0.24875]],
    ),
    "spo": Case(
        # Prompts that are new: alpha = beta = 1/2, so rates of 1/2. 1/2, -1/2, -1/2 less their mean -1/6:
        # 2/3, -1/3, -1/3, with variance (4/9 + 1/9 + 1/9)/2 = 1/3. The second step is in tests/core/test_memory.py.
        rollouts={"rewards": [1, 0, 0], "groups": ["a", "b", "c"]},
        advantages=[n / ((1 / 3) ** 0.5 + 1e-8) for n in (2 / 3, -1 / 3, -1 / 3)],
        # A = 1.5:  rho 2 -> -1.28 * 1.5 = -1.92 (clipped); 1.1 -> -1.65; 0.5 -> -0.75
        # A = -0.5: rho 12 -> 10 * 0.5 = 5 (dual clip); 2 -> 1. L = 1.68 / 5 tokens
        policy=PAIR["policy"],
        old=[[0.2, 0.5, 0.2], [0.1 / 12, _, 0.3]],
        given=[1.5, -0.5],
        loss=0.336,
        gradient=[[0, -0.33, -0.15], [0, _, 0.2]],
    ),
    "dcpo": Case(
        # The first step of a prompt: no history, and no epsilon. Group a, 0, 1, 2: mean 1, deviation 1. Group b, 1, 0:
        # 1/2 over sqrt(1/2). Later steps are in tests/core/test_memory.py.
        rollouts={"rewards": [0, 1, 2, 1, 0], "groups": [*"aaa", *"bb"]},
        advantages=[-1, 0, 1, 0.5**0.5, -(0.5**0.5)],
        # q = old. The lower bounds are 1/2, since 4 * 0.16/q > 1 for every q below 0.64; the upper bound at q = 0.2 is
        # 1/2 + sqrt(1 + 0.8/0.2)/2 = (1 + sqrt 5)/2 = 1.618033988750.
        # A = 1.5:  rho 2 -> -1.618033988750 * 1.5 = -2.427050983125 (clipped); 1.1 -> -1.65; 0.5 -> -0.75.
        # A = -0.5: rho 0.25 -> 0.25 (clipped); 2 -> 1. L = (-4.827050983125/3 + 1.25/2)/2.
        policy=[[0.4, 0.55, 0.1], [0.05, _, 0.6]],
        old=PAIR["old"],
        given=[1.5, -0.5],
        loss=-0.492008497187,
        gradient=[[0, -0.275, -0.125], [0, _, 0.25]],
    ),
}
