"""Every variant worked by hand: inputs, and the advantages, loss and gradient that follow, step by step.

Inputs are probabilities, so that a ratio is a quotient that can be read off; None is a position outside the loss mask,
and holds NaN in the tensors. In the comments p is the policy, rho = p / old, e^u = ref / p, l_i the tokens of
response i, N the responses. The gradient is that of the loss with respect to log p; of a clipped token it is 0.

The loss is worked with advantages of its own, round numbers of both signs, not with those of the first half: a division
by std + eps would only put digits into every line. Wherever a clip range exists, the ratios fall inside it and outside
it on both sides, for both signs of A.

Logarithms used: ln 2 = 0.693147180560, ln 1.5 = 0.405465108108, ln(4/3) = 0.287682072452,
ln 0.022 = -3.816712825624 (0.022 = 0.4 * 0.55 * 0.1), ln 0.06 = -2.813410716760 (0.06 = 0.1 * 0.6).
"""

from __future__ import annotations

from support.handworked import advantages as handworked_advantages
from support.handworked import objectives as handworked_objectives
from support.handworked.case import FOUR, PAIR, PAIR_KL, Case, _, logs, numbers, present

__all__ = ["CASES", "Case", "numbers", "present"]

CASES: dict[str, Case] = {
    "reinforce": Case(
        # A = r.
        rollouts={"rewards": [1, -0.5, 0.25], "groups": ["a", "a", "b"]},
        advantages=[1, -0.5, 0.25],
        # No ratio: old is not read. L = -1/N * sum of A_i * (sum over tokens of ln p)
        #   = -1/2 * (1.5 * ln 0.022 - 0.5 * ln 0.06) = -1/2 * (-5.725069238437 + 1.406705358380)
        # Gradient of every token: -A_i / N.
        policy=PAIR["policy"],
        old=PAIR["old"],
        given=[1.5, -0.5],
        loss=2.159181940028,
        gradient=[[-0.75, -0.75, -0.75], [0.25, _, 0.25]],
    ),
    "rloo": Case(
        # Group a, rewards 0, 1, 3: means of the others 2, 1.5, 0.5. Group b, rewards 1, 0: others 0, 1.
        rollouts={"rewards": [0, 1, 1, 0, 3], "groups": ["a", "b", "a", "b", "a"]},
        advantages=[-2, 1, -0.5, -1, 2.5],
        # As reinforce: L = -1/2 * (2.5 * ln 0.022 - 2 * ln 0.06) = -1/2 * (-9.541782064060 + 5.626821433520)
        policy=PAIR["policy"],
        old=PAIR["old"],
        given=[2.5, -2],
        loss=1.957480315270,
        gradient=[[-1.25, -1.25, -1.25], [1, _, 1]],
    ),
    "grpo": Case(
        # Group a, rewards 0, 1, 2: mean 1, variance (1 + 0 + 1)/2 = 1, std + eps = 1.000001.
        # Group b, rewards 1, 1, 5, 1: mean 2, deviations -1, -1, 3, -1, variance 12/3 = 4, std + eps = 2.000001.
        # Group c, all 0.7: exactly 0.
        rollouts={
            "rewards": [0, 1, 1, 2, 5, 0.7, 1, 1, 0.7],
            "groups": ["a", "b", "b", "a", "b", "c", "a", "b", "c"],
        },
        advantages=[
            *(-1 / 1.000001, -1 / 2.000001, -1 / 2.000001, 1 / 1.000001, 3 / 2.000001),
            *(0, 0, -1 / 2.000001, 0),
        ],
        # -min(rho A, clip(rho, 0.8, 1.2) A):
        #   A = 1.5:  rho 2 -> -1.2 * 1.5 = -1.8 (clipped); 1.1 -> -1.65; 0.5 -> -0.75 (not clipped: A > 0). Sum -4.2.
        #   A = -0.5: rho 0.5 -> 0.8 * 0.5 = 0.4 (clipped); 2 -> 1.0 (not clipped: A < 0). Sum 1.4.
        # L = (-4.2/3 + 1.4/2) / 2 + KL = -0.35 + 0.006210154058
        # Gradient: (-rho A where not clipped + 0.04 * (1 - e^u)) / (2 l):
        #   (0 - 0.04)/6, (-1.65 + 0.02)/6, (-0.75 + 0)/6 | (0 + 0.02)/4, (1 - 0.02)/4
        **PAIR,
        given=[1.5, -0.5],
        loss=-0.35 + PAIR_KL,
        gradient=[[-0.04 / 6, -1.63 / 6, -0.125], [0.005, _, 0.245]],
    ),
    "grpo_process": Case(
        # One group of two responses with two steps each; rewards of the steps 5, 1 | 1, 1.
        # Over the group's four steps: mean 2, std 2, normalised (1.5, -0.5 | -0.5, -0.5) * 2 / 2.000001.
        # Summed over the steps that end at or after a token:
        #   first response, steps end at tokens 2 and 4:  1.5 - 0.5 = 1, 1, -0.5, -0.5
        #   second response, steps end at tokens 1 and 3: -0.5 - 0.5 = -1, -0.5, -0.5, then padding
        rollouts={
            "token_rewards": [[0, 5, 0, 1], [1, 0, 1, float("nan")]],
            "step_ends": [[0, 1, 0, 1], [1, 0, 1, 0]],
            "mask": [[1, 1, 1, 1], [1, 1, 1, 0]],
            "groups": ["a", "a"],
        },
        advantages=[
            [2 / 2.000001, 2 / 2.000001, -1 / 2.000001, -1 / 2.000001],
            [-2 / 2.000001, -1 / 2.000001, -1 / 2.000001, 0],
        ],
        # As grpo with an A for each token:
        #   A = 1, rho 2 -> -1.2 (clipped); A = 1, rho 1.1 -> -1.1; A = -0.5, rho 0.5 -> 0.4 (clipped). Sum -1.9.
        #   A = -1, rho 0.5 -> 0.8 (clipped); A = -0.5, rho 2 -> 1.0. Sum 1.8.
        # L = (-1.9/3 + 1.8/2) / 2 + KL = 0.133333333333 + 0.006210154058
        # Gradient: (0 - 0.04)/6, (-1.1 + 0.02)/6, (0 + 0)/6 | (0 + 0.02)/4, (1 - 0.02)/4
        **PAIR,
        given=[[1, 1, -0.5], [-1, _, -0.5]],
        loss=0.4 / 3 + PAIR_KL,
        gradient=[[-0.04 / 6, -0.18, 0], [0.005, _, 0.245]],
    ),
    "dr_grpo": Case(
        # Group a, rewards 0, 1, 3: mean 4/3. Group b, rewards 1, 0: mean 1/2. No standard deviation.
        rollouts={"rewards": [0, 1, 1, 0, 3], "groups": ["a", "b", "a", "b", "a"]},
        advantages=[-4 / 3, 0.5, -1 / 3, -0.5, 5 / 3],
        # A = 1:  rho 2 -> -1.2 (clipped); 1.1 -> -1.1; 0.5 -> -0.5. Sum -2.8.
        # A = -2: rho 0.5 -> 0.8 * 2 = 1.6 (clipped); 2 -> 4. Sum 5.6.
        # Constant length 5: L = (-2.8 + 5.6) / (2 * 5). Gradient: 0, -1.1/10, -0.5/10 | 0, 4/10
        policy=PAIR["policy"],
        old=PAIR["old"],
        given=[1, -2],
        counts={"length": 5},
        loss=0.28,
        gradient=[[0, -0.11, -0.05], [0, _, 0.4]],
    ),
    "dapo": Case(
        # Rewards of +1 and -1. Group a, one right of four: mean -0.5, deviations 1.5, -0.5, -0.5, -0.5,
        # variance (2.25 + 0.75)/3 = 1. Group b, three right of four: the same with the signs changed.
        rollouts={"rewards": [1, 1, -1, 1, -1, 1, -1, -1], "groups": ["a", "b", "a", "b", "a", "b", "a", "b"]},
        advantages=[
            *(1.5 / 1.000001, 0.5 / 1.000001, -0.5 / 1.000001, 0.5 / 1.000001),
            *(-0.5 / 1.000001, 0.5 / 1.000001, -0.5 / 1.000001, -1.5 / 1.000001),
        ],
        # -min(rho A, clip(rho, 0.8, 1.28) A):
        #   A = 1.5:  rho 1.25 -> -1.875 (inside, thanks to clip-higher); 2 -> -1.28 * 1.5 = -1.92 (clipped);
        #             0.5 -> -0.75. Sum -4.545.
        #   A = -0.5: rho 0.5 -> 0.8 * 0.5 = 0.4 (clipped).
        #   A = -0.5: rho 2 -> 1.0; 0.9 -> 0.45. Sum 1.45.
        # L = (-4.545 + 0.4 + 1.45) / 6 tokens. Gradient: -1.875/6, 0, -0.75/6 | 0 | 1/6, 0.45/6
        policy=[[0.5, 0.6, 0.1], [0.1, _, _], [_, 0.6, 0.45]],
        old=[[0.4, 0.3, 0.2], [0.2, _, _], [_, 0.3, 0.5]],
        given=[1.5, -0.5, -0.5],
        loss=-2.695 / 6,
        gradient=[[-0.3125, 0, -0.125], [0, _, _], [_, 1 / 6, 0.075]],
    ),
    "gspo": Case(
        # Rewards 1, -1, -1, -1: std 1, as dapo's group a.
        rollouts={"rewards": [-1, 1, -1, -1], "groups": [7, 7, 7, 7]},
        advantages=[-0.5 / 1.000001, 1.5 / 1.000001, -0.5 / 1.000001, -0.5 / 1.000001],
        # x_i = -min(s A, clip(s, 0.9997, 1.0004) A), one per response; L = mean of x_i:
        #   A = 1.5,  s = 1.032 -> -1.0004 * 1.5 = -1.5006 (clipped)
        #   A = -0.5, s = sqrt 2 -> 0.5 * 1.414213562373 = 0.707106781187
        #   A = -1,   s = 0.5 -> 0.9997 (clipped)
        #   A = 1,    s = 0.5 -> -0.5
        # L = (-1.5006 + 0.707106781187 + 0.9997 - 0.5) / 4 = -0.293793218813 / 4
        # s has gradient s/l at each token, so x_i has -A s / l: 0.707106781187/2/4 | -0.5/2/4
        **FOUR,
        given=[1.5, -0.5, -1, 1],
        loss=-0.073448304703,
        gradient=[[0, 0, 0], [0.088388347648, _, 0.088388347648], [0, _, _], [-0.0625, -0.0625, _]],
    ),
    "gspo_token": Case(
        # Rewards 0, 3, 0, 3: mean 1.5, variance 4 * 2.25 / 3 = 3, std 1.732050807569; 1.5 / 1.732051807569.
        rollouts={"rewards": [0, 3, 0, 3], "groups": ["q", "q", "q", "q"]},
        advantages=[-0.866024903785, 0.866024903785, -0.866024903785, 0.866024903785],
        # As gspo with an A for each token, the same s for every token of a response, its gradient s at that token only:
        #   s = 1.032280115456: A = 1.5 -> -1.5006 (clipped); A = -0.5 -> 0.516140057728; A = 0.5 -> -0.5002 (clipped)
        #     mean -1.484659942272 / 3 = -0.494886647424
        #   s = sqrt 2: A = -0.5 -> 0.707106781187; A = 1 -> -1.0004 (clipped). Mean -0.146646609407
        #   s = 0.5: A = -1 -> 0.9997 (clipped)
        #   s = 0.5: A = 1 -> -0.5; A = -2 -> 1.9994 (clipped). Mean 0.7497
        # L = (-0.494886647424 - 0.146646609407 + 0.9997 + 0.7497) / 4
        # Gradient -A s / l / 4: 0.516140057728/12 | 0.707106781187/8 | | -0.5/8
        **FOUR,
        given=[[1.5, -0.5, 0.5], [-0.5, _, 1], [-1, _, _], [1, -2, _]],
        loss=0.276966685792,
        gradient=[[0, 0.043011671477, 0], [0.088388347648, _, 0], [0, _, _], [-0.0625, 0, _]],
    ),
    "reinforce_pp": Case(
        # Two responses of 2 and 3 tokens, rewards 1 and 0 at their last token. k1 = ln(old / ref), beta 0.01,
        # c = 0.01 ln 2 = 0.006931471806:
        #   old/ref = 2, 1/2    -> penalties c, -c;   returns R = 1, 1 + c (from the last token back: 1 + c, 1 + c - c)
        #   old/ref = 1, 2, 2    -> penalties 0, c, c;  returns R = -2c, -2c, -c
        # Mean (2 + c - 5c)/5 = 0.4 - 0.8 c = 0.394454822556; deviations
        #   0.605545177444, 0.612476649250 | -0.408317766167, -0.408317766167, -0.401386294361
        # sum of squares 1.236370361439, variance of the population 0.247274072288, its root 0.497266600817
        rollouts={
            "rewards": [1, 0],
            "groups": ["a", "b"],
            "mask": [[1, 1, 0], [1, 1, 1]],
            "old_logp": logs([[0.4, 0.3, _], [0.5, 0.6, 0.2]]),
            "ref_logp": logs([[0.2, 0.6, _], [0.5, 0.3, 0.1]]),
        },
        advantages=[[1.217747535125, 1.231686681238, 0], [-0.821124454158, -0.821124454158, -0.807185308046]],
        # The KL is in the reward, so ref is not read here. -min(rho A, clip(rho, 0.8, 1.2) A):
        #   A = 0.5, rho 2 -> -0.6 (clipped); A = 1, rho 1.1 -> -1.1; A = -1, rho 0.5 -> 0.8 (clipped)
        #   A = 1, rho 0.5 -> -0.5; A = -2, rho 2 -> 4
        # L = (-0.6 - 1.1 + 0.8 - 0.5 + 4) / 5 tokens. Gradient: 0, -1.1/5, 0 | -0.5/5, 4/5
        **PAIR,
        given=[[0.5, 1, -1], [1, _, -2]],
        loss=0.52,
        gradient=[[0, -0.22, 0], [-0.1, _, 0.8]],
    ),
    "reinforce_pp_baseline": Case(
        # Group a, rewards 1, 0: a_i = 0.5, -0.5, of 3 and 1 tokens. Group b, rewards 2, 0, 1: a_i = 1, -1, 0, of 2, 1
        # and 1 tokens. Over the 8 tokens: mean (3 * 0.5 - 0.5 + 2 * 1 - 1 + 0)/8 = 0.25; deviations
        # 0.25, -0.75, 0.75, -1.25, -0.25; squares 3 * 0.0625 + 0.5625 + 2 * 0.5625 + 1.5625 + 0.0625 = 3.5;
        # variance 3.5/8 = 0.4375; its root 0.661437827766.
        rollouts={"rewards": [1, 0, 2, 0, 1], "groups": ["a", "a", "b", "b", "b"], "lengths": [3, 1, 2, 1, 1]},
        advantages=[0.377964473009, -1.133893419028, 1.133893419028, -1.889822365046, -0.377964473009],
        # Policy term as grpo: sums -4.2 | 1.4. k2 = u^2/2: (ln 2)^2/2 three times and (ln 1.5)^2/2:
        #   1.5 * 0.480453013918 + 0.5 * 0.164401953893 = 0.802880497824
        # L = (-4.2 + 1.4 + 1e-5 * 0.802880497824) / 5 tokens
        # Gradient of k2 is -u: -ln 2, ln 2, 0 | ln 2, -ln 1.5. With the policy term's, divided by 5:
        #   (0 - 1e-5 ln 2)/5, (-1.65 + 1e-5 ln 2)/5, -0.75/5 | 1e-5 ln 2/5, (1 - 1e-5 ln 1.5)/5
        **PAIR,
        given=[1.5, -0.5],
        loss=-0.559998394239,
        gradient=[[-0.000001386294, -0.329998613706, -0.15], [0.000001386294, _, 0.199999189070]],
    ),
    "remax": Case(
        # A = r - r(greedy); one greedy reward per prompt, repeated for its responses.
        rollouts={"rewards": [1, 0.25, 0], "greedy_rewards": [0.5, 0.5, -1], "groups": ["a", "a", "b"]},
        advantages=[0.5, -0.25, 1],
        # As reinforce: L = -1/2 * (0.5 * ln 0.022 - 0.25 * ln 0.06) = -1/2 * (-1.908356412812 + 0.703352679190)
        policy=PAIR["policy"],
        old=PAIR["old"],
        given=[0.5, -0.25],
        loss=0.602501866811,
        gradient=[[-0.25, -0.25, -0.25], [0.125, _, 0.125]],
    ),
    **handworked_advantages.CASES,
    **handworked_objectives.CASES,
}
