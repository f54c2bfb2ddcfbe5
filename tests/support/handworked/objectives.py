"""Members that differ in the objective, worked by hand; the notation is that of tests/support/handworked/variants.py.

w is old / rollout. Where a member's advantages are GRPO's or DAPO's, they are worked once, in `NORMALISED`.
"""

from __future__ import annotations

from math import exp
from math import log as ln
from typing import Any

from support.handworked.case import FOUR, PAIR, Case, Table, _, numbers

# Rewards 0, 1, 2 with mean 1 and deviation 1; two rewards of 0.7 give exactly 0.
NORMALISED: dict[str, Any] = {
    "rollouts": {"rewards": [0, 0.7, 1, 2, 0.7], "groups": ["a", "b", "a", "a", "b"]},
    "advantages": [-1 / 1.000001, 0, 0, 1 / 1.000001, 0],
}
CENTRED: dict[str, Any] = {
    "rollouts": {"rewards": [0, 0.7, 1, 5, 0.7], "groups": ["a", "b", "a", "a", "b"]},
    "advantages": [-2, 0, -1, 3, 0],
}

# rho: 1.25, 2, 0.5 | 0.5 | 2, 0.9; the third response begins outside the mask.
THREE: dict[str, Table] = {
    "policy": [[0.5, 0.6, 0.1], [0.1, _, _], [_, 0.6, 0.45]],
    "old": [[0.4, 0.3, 0.2], [0.2, _, _], [_, 0.3, 0.5]],
}
PAIR_WITHOUT_REFERENCE: dict[str, Table] = {"policy": PAIR["policy"], "old": PAIR["old"]}
# With PAIR: w = 2, 1, 0.25 | 20/3, 1.5
ROLLOUT: Table = [[0.1, 0.5, 0.8], [0.03, _, 0.2]]

# Four responses whose first token has the highest entropy, above the 80 % quantile of its own response.
SPLIT: dict[str, Table] = {"policy": [[0.52, 0.4, 0.1], [0.14, _, 0.6], [0.1, 0.35, 0.8], [0.6, 0.55, _]]}
ENTROPIES = numbers([[1.2, 0.3, 0.4], [0.9, _, 0.1], [1.5, 0.2, 1.4], [0.8, 0.7, _]], float("nan"))

# Delta L: lengths 3, 2, 1 to the power of -0.75, over their sum.
POWERS = (3**-0.75, 2**-0.75, 1)
LONG, MIDDLE, SHORT = (power / sum(POWERS) for power in POWERS)

SUMS = (exp(-0.4) + 1 / 1.1 + 2, exp(0.4) + 0.5)  # of hmpo

CASES: dict[str, Case] = {
    "two_sided": Case(
        **NORMALISED,
        # rho 2, 1.1, 0.5 | 0.5, 5
        #   A = 1.5:  -1.2 * 1.5 = -1.8 (clipped); -1.65; -0.75. Sum -4.2.
        #   A = -0.5: 0.8 * 0.5 = 0.4 (clipped); min(5, 4) * 0.5 = 2 (clipped by delta). Sum 2.4.
        # k3 and its gradient 1 - e^u as in PAIR: sums 0.5 | ln(4/3); gradients -1, 0.5, 0 | 0.5, -0.5.
        # L = (-4.2 + 2.4 + 0.001 * (0.5 + ln(4/3))) / 5 tokens
        policy=PAIR["policy"],
        old=[[0.2, 0.5, 0.2], [0.2, _, 0.12]],
        ref=PAIR["ref"],
        given=[1.5, -0.5],
        loss=(-1.8 + 0.001 * 0.787682072452) / 5,
        gradient=[[-0.001 / 5, -1.6495 / 5, -0.15], [0.0005 / 5, _, -0.0005 / 5]],
    ),
    "luspo": Case(
        **NORMALISED,
        # s as in FOUR, clip(0.998, 1.0025); l_i times a response's loss:
        #   A = 1.5,  s = 1.032  -> 3 * -1.0025 * 1.5 = -4.51125 (clipped)
        #   A = -0.5, s = sqrt 2 -> 2 * 0.5 * 1.414213562373 = 1.414213562373
        #   A = -1,   s = 0.5    -> 0.998 (clipped)
        #   A = 1,    s = 0.5    -> 2 * -0.5 = -1
        # L = their sum / 4. s has gradient s/l at each token, so l_i x_i has -A s: 0.5 sqrt 2 / 4 and -0.5 / 4.
        **FOUR,
        given=[1.5, -0.5, -1, 1],
        loss=(-4.51125 + 1.414213562373 + 0.998 - 1) / 4,
        gradient=[[0, 0, 0], [0.176776695297, _, 0.176776695297], [0, _, _], [-0.125, -0.125, _]],
    ),
    "delta_l": Case(
        **NORMALISED,
        # -min(rho A, clip(rho, 0.8, 1.3) A): A = 1.5: -1.95 (clipped), -1.65, -0.75, sum -4.35
        #   A = -0.5: 0.4 (clipped), 1, sum 1.4. A = 1: rho 1.25 -> -1.25 (within 1.3).
        # Constant length 5: L = (LONG * -4.35 + MIDDLE * 1.4 + SHORT * -1.25) / 5
        policy=[*PAIR["policy"], [0.5, _, _]],
        old=[*PAIR["old"], [0.4, _, _]],
        given=[1.5, -0.5, 1],
        counts={"length": 5},
        loss=(-4.35 * LONG + 1.4 * MIDDLE - 1.25 * SHORT) / 5,
        gradient=[[0, -0.33 * LONG, -0.15 * LONG], [0, _, MIDDLE / 5], [-0.25 * SHORT, _, _]],
    ),
    "forking_tokens": Case(
        **NORMALISED,
        # Entropies 0.1, 0.2, 0.3, 0.5, 1.5, 2 in order: the 80 % quantile is at place 0.8 * 5 = 4, the 1.5.
        # Kept: A = 1.5, rho 1.25 -> -1.875; A = -0.5, rho 2 -> 1. The six tokens all stay in the count.
        **THREE,
        extras={"entropy": numbers([[2, 0.5, 0.1], [0.3, _, _], [_, 1.5, 0.2]], float("nan"))},
        given=[1.5, -0.5, -0.5],
        loss=-0.875 / 6,
        gradient=[[-0.3125, 0, 0], [0, _, _], [_, 1 / 6, 0]],
    ),
    "tis": Case(
        **NORMALISED,
        # w capped at 2: 2, 1, 0.25 | 2, 1.5. -min(rho A, clip(rho, 0.8, 1.28) A) times w:
        #   A = 1.5:  rho 2 -> -1.92 * 2 = -3.84 (clipped); 1.1 -> -1.65; 0.5 -> -0.75 * 0.25 = -0.1875
        #   A = -0.5: rho 0.5 -> 0.4 * 2 = 0.8 (clipped); rho 2 -> 1 * 1.5 = 1.5
        # L = -3.3775 / 5 tokens. w has no gradient.
        policy=PAIR["policy"],
        old=PAIR["old"],
        rollout=ROLLOUT,
        given=[1.5, -0.5],
        loss=-0.6755,
        gradient=[[0, -0.33, -0.0375], [0, _, 0.3]],
    ),
    "seq_mis": Case(
        **CENTRED,
        # w = 2, 1, 1 | 16 | 0.5, 1, so W = 2 | 16, above 10: dropped | 0.5.
        #   A = 1.5:  rho 1.25 and 2 -> -1.8 each (clipped); 0.5 -> -0.75. Sum -4.35.
        #   A = -0.5: rho 2 -> 1; 0.9 -> 0.45. Sum 1.45.
        # Constant length 5: L = (2 * -4.35 + 0.5 * 1.45) / (3 * 5). Gradient: 0, 0, 2 * -0.75/15 | 0 | 0.5/15, 0.225/15
        **THREE,
        rollout=[[0.2, 0.3, 0.2], [0.0125, _, _], [_, 0.6, 0.5]],
        counts={"length": 5},
        given=[1.5, -0.5, -0.5],
        loss=-7.975 / 15,
        gradient=[[0, 0, -0.1], [0, _, _], [_, 1 / 30, 0.015]],
    ),
    "icepop": Case(
        **NORMALISED,
        # w = 2, 1, 0.25 (below 0.5: dropped) | 20/3 (above 5: dropped), 1.5
        #   A = 1.5:  -1.8 * 2 = -3.6 (clipped); -1.65; 0. Sum -5.25.
        #   A = -0.5: 0; 1 * 1.5 = 1.5.
        # L = (-5.25/3 + 1.5/2) / 2. Gradient: 0, -1.65/6, 0 | 0, 1.5/4
        policy=PAIR["policy"],
        old=PAIR["old"],
        rollout=ROLLOUT,
        given=[1.5, -0.5],
        loss=-0.5,
        gradient=[[0, -0.275, 0], [0, _, 0.375]],
    ),
    "glm5": Case(
        **NORMALISED,
        # w = 1.6, 1.5, 2.5 (above 2: dropped) | 0.4 (below 1/2: dropped), 1.5 | 0.8, 1
        #   A = 1.5:  rho 1.25 -> -1.875 * 1.6 = -3; 2 -> -1.92 * 1.5 = -2.88 (clipped); 0. Sum -5.88.
        #   A = -0.5: 0; rho 2 -> 1 * 1.5 = 1.5
        #   A = -0.5: rho 0.5 -> 0.4 * 0.8 = 0.32 (clipped); 0.9 -> 0.45. Sum 0.77.
        # L = (-5.88/3 + 1.5/2 + 0.77/2) / 3. Gradient: -3/9, 0, 0 | 0, 1.5/6 | 0, 0.45/6
        policy=[[0.5, 0.6, 0.1], [0.1, _, 0.6], [_, 0.3, 0.45]],
        old=[[0.4, 0.3, 0.2], [0.2, _, 0.3], [_, 0.6, 0.5]],
        rollout=[[0.25, 0.2, 0.08], [0.5, _, 0.2], [_, 0.75, 0.5]],
        given=[1.5, -0.5, -0.5],
        loss=-0.275,
        gradient=[[-1 / 3, 0, 0], [0, _, 0.25], [_, 0, 0.075]],
    ),
    "deepseek_v32": Case(
        **CENTRED,
        # Mean of ln(rollout / p): row 1 is not read (A > 0), row 2 (ln 2 - ln 2)/2 = 0, row 3 (ln 4 + ln 2)/2 = 1.04
        #   > 0.5:
        # dropped. Policy sums -4.2 | 1.4 | 0, as grpo.
        # rho k3, and its gradient rho k3 + rho (1 - e^u):
        #   2 (1 - ln 2), 1.1 (ln 2 - 0.5), 0; -2 ln 2, 1.1 ln 2, 0
        #   0.5 (ln 2 - 0.5), 2 (0.5 - ln 1.5); 0.5 ln 2, -2 ln 1.5
        #   rho 0.5, e^u 2: 0.5 (1 - ln 2), then rho 1, e^u 1: 0; -0.5 ln 2, 0
        # sums 0.826167537496 | 0.285643374064 | 0.153426409720
        # L = ((-4.2 + 0.001 * 0.826...)/3 + (1.4 + 0.001 * 0.285...)/2 + 0.001 * 0.153.../2) / 3
        policy=[[0.4, 0.55, 0.1], [0.1, _, 0.6], [0.1, 0.2, _]],
        old=[[0.2, 0.5, 0.2], [0.2, _, 0.3], [0.2, 0.2, _]],
        ref=[[0.8, 0.275, 0.1], [0.05, _, 0.9], [0.2, 0.2, _]],
        rollout=[[0.9, 0.9, 0.9], [0.2, _, 0.3], [0.4, 0.4, _]],
        given=[1.5, -0.5, -1],
        loss=(-1.4 + 0.7 + 0.001 * (0.826167537496 / 3 + 0.285643374064 / 2 + 0.153426409720 / 2)) / 3,
        gradient=[
            [-0.001 * 1.386294361120 / 9, (-1.65 + 0.001 * 0.762461898616) / 9, -0.75 / 9],
            [0.001 * 0.346573590280 / 6, _, (1 - 0.001 * 0.810930216216) / 6],
            [-0.001 * 0.346573590280 / 6, 0, _],
        ],
    ),
    "cispo": Case(
        **NORMALISED,
        # rho 2, 1.1, 0.5 | 0.5, 6, capped at 5. -w A ln p:
        #   A = 1.5:  -1.5 (2 ln 0.4 + 1.1 ln 0.55 + 0.5 ln 0.1)
        #   A = -0.5: 0.5 (0.5 ln 0.1 + 5 ln 0.6)
        # L = their sum / 5 tokens. Gradient -w A / 5, the capped token's too.
        policy=PAIR["policy"],
        old=[[0.2, 0.5, 0.2], [0.2, _, 0.1]],
        given=[1.5, -0.5],
        loss=(-1.5 * (2 * ln(0.4) + 1.1 * ln(0.55) + 0.5 * ln(0.1)) + 0.5 * (0.5 * ln(0.1) + 5 * ln(0.6))) / 5,
        gradient=[[-0.6, -0.33, -0.15], [0.05, _, 0.5]],
    ),
    "scalerl": Case(
        # Centred rewards 0.5, -0.5 | 1, -1: variance 2.5 / 3, std 0.912870929175.
        rollouts={"rewards": [1, 2, 0, 0], "groups": ["a", "b", "a", "b"]},
        advantages=[0.5 / 0.912871929175, 1 / 0.912871929175, -0.5 / 0.912871929175, -1 / 0.912871929175],
        # Group a: responses 1 and 2, of 3 and 1 tokens; group b: response 3, of 2. Weights 1/(2 * 4) and 1/(2 * 2).
        # rho to the engine: 1.25, 2, 0.5 | 0.5 | 6, capped at 5, and 0.9.
        policy=THREE["policy"],
        rollout=[[0.4, 0.3, 0.2], [0.2, _, _], [_, 0.1, 0.5]],
        extras={"groups": ["a", "a", "b"]},
        given=[1.5, -0.5, -0.5],
        loss=(-1.5 * (1.25 * ln(0.5) + 2 * ln(0.6) + 0.5 * ln(0.1)) + 0.25 * ln(0.1)) / 8
        + 0.5 * (5 * ln(0.6) + 0.9 * ln(0.45)) / 4,
        gradient=[[-1.875 / 8, -0.375, -0.75 / 8], [0.03125, _, _], [_, 0.625, 0.1125]],
    ),
    "topr": Case(
        rollouts={"rewards": [1, -1, -1], "groups": ["a", "a", "b"]},
        advantages=[1, -1, -1],
        # S = 2 * 1.1 * 0.5 = 1.1 | 0.5 * 3 = 1.5, tapered to 1 | 0.5. Weight 1 for A = 1.5; -w A ln p summed:
        #   -1.5 ln 0.022 | 0.5 ln 0.06 | 0.5 ln 0.1. L = their sum / 3.
        policy=[[0.4, 0.55, 0.1], [0.1, _, 0.6], [0.1, _, _]],
        rollout=[[0.2, 0.5, 0.2], [0.2, _, 0.2], [0.2, _, _]],
        given=[1.5, -0.5, -1],
        loss=(-1.5 * ln(0.022) + 0.5 * ln(0.06) + 0.5 * ln(0.1)) / 3,
        gradient=[[-0.5, -0.5, -0.5], [0.5 / 3, _, 0.5 / 3], [0.5 / 3, _, _]],
    ),
    "vespo": Case(
        **NORMALISED,
        # S = 1.1 | 0.5 * 3 = 1.5. phi:
        #   A = 1.5:  e^3 1.1^2 e^-3.3 = 1.21 e^-0.3 = 0.896390047025
        #   A = -0.5: e^2 1.5^3 e^-3 = 3.375 / e = 1.241593113954
        # L = (-0.896... * 1.5 ln 0.022 + 1.241... * 0.5 ln 0.06) / 5 tokens. Gradient -phi A / 5 at every token.
        policy=PAIR["policy"],
        old=[[0.2, 0.5, 0.2], [0.2, _, 0.2]],
        given=[1.5, -0.5],
        loss=(-0.896390047025 * 1.5 * ln(0.022) + 1.241593113954 * 0.5 * ln(0.06)) / 5,
        gradient=[[-0.268917014107] * 3, [0.124159311395, _, 0.124159311395]],
    ),
    "dppo_tv": Case(
        **CENTRED,
        # p - q: 0.3 (A > 0: dropped), 0.05, 0.048 | -0.25 (A < 0: dropped), 0.3 (A < 0: kept). rho 1.1, 25 | 2.
        #   -1.5 (1.1 ln 0.55 + 25 ln 0.05) | 0.5 * 2 ln 0.6. Constant length 5: L = their sum / (2 * 5).
        policy=[[0.4, 0.55, 0.05], [0.1, _, 0.6]],
        rollout=[[0.1, 0.5, 0.002], [0.35, _, 0.3]],
        given=[1.5, -0.5],
        counts={"length": 5},
        loss=(-1.5 * (1.1 * ln(0.55) + 25 * ln(0.05)) + ln(0.6)) / 10,
        gradient=[[0, -0.165, -3.75], [0, _, 0.1]],
    ),
    "prime_rl": Case(
        **CENTRED,
        # As dppo_tv, and 0.001 d^2 at every token, the dropped ones too: d = ln 4, ln 1.1, ln 25 | ln(2/7), ln 2.
        # L = (-1.5 (1.1 ln 0.55 + 25 ln 0.05) + ln 0.6 + 0.001 * their squares) / 5 tokens. The penalty's gradient is
        # 0.002 d.
        policy=[[0.4, 0.55, 0.05], [0.1, _, 0.6]],
        rollout=[[0.1, 0.5, 0.002], [0.35, _, 0.3]],
        given=[1.5, -0.5],
        loss=(
            -1.5 * (1.1 * ln(0.55) + 25 * ln(0.05))
            + ln(0.6)
            + 0.001 * (ln(4) ** 2 + ln(1.1) ** 2 + ln(25) ** 2 + ln(2 / 7) ** 2 + ln(2) ** 2)
        )
        / 5,
        gradient=[
            [0.002 * ln(4) / 5, (-1.65 + 0.002 * ln(1.1)) / 5, (-37.5 + 0.002 * ln(25)) / 5],
            [0.002 * ln(2 / 7) / 5, _, (1 + 0.002 * ln(2)) / 5],
        ],
    ),
    "dppo_kl": Case(
        **CENTRED,
        # q ln(q/p) + (1-q) ln((1-q)/(1-p)):
        #   p 0.6, q 0.42: 0.42 ln 0.7 + 0.58 ln 1.45 = 0.0657 (A > 0: dropped, though p - q is 0.18)
        #   p 0.55, q 0.5: 0.0050; p 0.05, q 0.002: 0.002 ln 0.04 + 0.998 ln(0.998/0.95) = 0.0428: kept, rho 25
        #   p 0.1, q 0.35: 0.35 ln 3.5 + 0.65 ln(0.65/0.9) = 0.2269 (A < 0, p < q: dropped); p 0.6, q 0.3: p > q, kept
        # From there on as dppo_tv.
        policy=[[0.6, 0.55, 0.05], [0.1, _, 0.6]],
        rollout=[[0.42, 0.5, 0.002], [0.35, _, 0.3]],
        given=[1.5, -0.5],
        counts={"length": 5},
        loss=(-1.5 * (1.1 * ln(0.55) + 25 * ln(0.05)) + ln(0.6)) / 10,
        gradient=[[0, -0.165, -3.75], [0, _, 0.1]],
    ),
    "sapo": Case(
        **NORMALISED,
        # 4/tau sigma(tau (rho - 1)), s = sigma:
        #   tau = 1, rho - 1 = 1, 0.1, -0.5:     s = 0.731058578630, 0.524979187479, 0.377540668798
        #   tau = 1.05, tau (rho - 1) = -0.525, 1.05: s = 0.371683811705, 0.740774899182
        # Sums -1.5 * 4 * 1.633578434907 = -9.801470609443 | 0.5 * 4/1.05 * 1.112458710887 = 2.118968973118
        # L = (-9.801470609443/3 + 2.118968973118/2) / 2
        # Gradient of the gate 4 s (1 - s) rho, times -A / (2 l): the slope 4 s (1 - s) is
        #   0.786447732966, 0.997504160772, 0.940014848806 | 0.934139823285, 0.768109791695
        **PAIR_WITHOUT_REFERENCE,
        given=[1.5, -0.5],
        loss=(-9.801470609443 / 3 + 2.118968973118 / 2) / 2,
        gradient=[
            [-0.786447732966 * 2 / 4, -0.997504160772 * 1.1 / 4, -0.940014848806 * 0.5 / 4],
            [0.934139823285 * 0.5 / 8, _, 0.768109791695 * 2 / 8],
        ],
    ),
    "gmpo": Case(
        **NORMALISED,
        # Log ratios ln 2, ln 1.1, -ln 2 | -ln 2, ln 2.
        #   A = 1.5:  min(d, 0.4) = 0.4 (clipped), ln 1.1, -ln 2: mean (0.4 + ln 0.55)/3; x = -1.5 e^-0.065945666919
        #             = -1.404272592822
        #   A = -0.5: max(d, -0.4) = -0.4 (clipped), ln 2: mean (ln 2 - 0.4)/2; x = 0.5 e^0.146573590280 =
        #     0.578930067467
        # L = (x_1 + x_2) / 2. Gradient x_i / l_i / 2 at the tokens that are not clipped.
        **PAIR_WITHOUT_REFERENCE,
        given=[1.5, -0.5],
        loss=(-1.404272592822 + 0.578930067467) / 2,
        gradient=[[0, -1.404272592822 / 6, -1.404272592822 / 6], [0, _, 0.578930067467 / 4]],
    ),
    "hmpo": Case(
        **NORMALISED,
        # Log ratios as in gmpo; e^-d of the clipped ones, and x = -A l / sum:
        #   A = 1.5:  e^-0.4 (clipped), 1/1.1, 2: their sum is SUMS[0], 3.579410955127; x = -4.5 / sum
        #   A = -0.5: e^0.4 (clipped), 1/2: their sum is SUMS[1], 1.991824697641; x = 1 / sum
        # L = (x_1 + x_2) / 2. Gradient x_i e^-d / sum / 2 at the tokens that are not clipped.
        **PAIR_WITHOUT_REFERENCE,
        given=[1.5, -0.5],
        loss=(-4.5 / SUMS[0] + 1 / SUMS[1]) / 2,
        gradient=[[0, -2.25 / 1.1 / SUMS[0] ** 2, -4.5 / SUMS[0] ** 2], [0, _, 0.25 / SUMS[1] ** 2]],
    ),
    "minirl": Case(
        **CENTRED,
        # Ratio to the old policy: 2 (A > 0, above 1.27: dropped), 1.1, 0.5 | 0.5 (A < 0, below 0.8: dropped), 2.
        # Ratio to the engine: 1.1, and 10 held at 5 | 3. Sum over tokens, mean over the two responses:
        # L = (-1.5 (1.1 ln 0.55 + 5 ln 0.1) + 0.5 * 3 ln 0.6) / 2
        **PAIR_WITHOUT_REFERENCE,
        rollout=[[0.4, 0.5, 0.01], [0.1, _, 0.2]],
        given=[1.5, -0.5],
        loss=(-1.5 * (1.1 * ln(0.55) + 5 * ln(0.1)) + 1.5 * ln(0.6)) / 2,
        gradient=[[0, -0.825, -3.75], [0, _, 0.75]],
    ),
    "simple_policy_optimization": Case(
        **NORMALISED,
        # -rho A + |A|/0.4 (rho - 1)^2:
        #   A = 1.5:  -3 + 3.75 = 0.75; -1.65 + 0.0375 = -1.6125; -0.75 + 0.9375 = 0.1875. Sum -0.675.
        #   A = -0.5: 0.25 + 0.3125 = 0.5625; 1 + 1.25 = 2.25. Sum 2.8125.
        # L = (-0.225 + 1.40625) / 2. Gradient rho (-A + |A|/0.2 (rho - 1)) / (2 l):
        #   2 * 6, 1.1 * -0.75, 0.5 * -5.25 | 0.5 * -0.75, 2 * 3
        **PAIR_WITHOUT_REFERENCE,
        given=[1.5, -0.5],
        loss=0.590625,
        gradient=[[2, -0.1375, -0.4375], [-0.09375, _, 1.5]],
    ),
    "kimi_k15": Case(
        **CENTRED,
        # Log ratios of the responses ln 1.1 and ln 1.5.
        # L = (-1.5 ln 0.022 + 0.05 ln(1.1)^2 + 0.5 ln 0.06 + 0.05 ln(1.5)^2) / 2
        # Gradient (-A + 0.1 d_i) / 2 at every token.
        policy=PAIR["policy"],
        old=[[0.2, 0.5, 0.2], [0.2, _, 0.2]],
        given=[1.5, -0.5],
        loss=(-1.5 * ln(0.022) + 0.05 * ln(1.1) ** 2 + 0.5 * ln(0.06) + 0.05 * ln(1.5) ** 2) / 2,
        gradient=[[-0.75 + 0.05 * ln(1.1)] * 3, [0.25 + 0.05 * ln(1.5), _, 0.25 + 0.05 * ln(1.5)]],
    ),
    "pmd_mean": Case(
        # Means of the others: 3, 2.5, 0.5 | 0.7, 0.7.
        rollouts=CENTRED["rollouts"],
        advantages=[-3, 0, -1.5, 4.5, 0],
        # Log ratios of the responses: ln(100 * 10 * 1) and ln(0.5 * 300).
        # L = ((-1.5 ln 0.022 + 0.005 ln(1000)^2)/3 + (0.5 ln 0.06 + 0.005 ln(150)^2)/2) / 2
        # Gradient (-A + 0.01 d_i) / (2 l) at every token.
        policy=PAIR["policy"],
        old=[[0.004, 0.055, 0.1], [0.2, _, 0.002]],
        given=[1.5, -0.5],
        loss=(-1.5 * ln(0.022) + 0.005 * ln(1000) ** 2) / 6 + (0.5 * ln(0.06) + 0.005 * ln(150) ** 2) / 4,
        gradient=[[(-1.5 + 0.01 * ln(1000)) / 6] * 3, [(0.5 + 0.01 * ln(150)) / 4, _, (0.5 + 0.01 * ln(150)) / 4]],
    ),
    "pmd_partition": Case(
        # Group a: the only right one has the bound, M + 0.01 ln 1e-8 = 1 - 0.08 ln 10; the wrong ones the mean of 1, 0,
        # 0 relative to M: 1 + 0.01 ln(1/3), where e^-100 is nothing.
        # Group b, two right ones: 1 + 0.01 ln(1/3), and 1 + 0.01 ln(2/3) for the wrong ones. Group c is constant.
        rollouts={"rewards": [1, 0, 0, 0, 1, 1, 0, 0, 0.7, 0.7], "groups": [*"aaaa", *"bbbb", *"cc"]},
        advantages=[
            *(0.08 * ln(10), -1 + 0.01 * ln(3), -1 + 0.01 * ln(3), -1 + 0.01 * ln(3)),
            *(0.01 * ln(3), 0.01 * ln(3), -1 - 0.01 * ln(2 / 3), -1 - 0.01 * ln(2 / 3)),
            *(0, 0),
        ],
        # From there on as pmd_mean.
        policy=PAIR["policy"],
        old=[[0.004, 0.055, 0.1], [0.2, _, 0.002]],
        given=[1.5, -0.5],
        loss=(-1.5 * ln(0.022) + 0.005 * ln(1000) ** 2) / 6 + (0.5 * ln(0.06) + 0.005 * ln(150) ** 2) / 4,
        gradient=[[(-1.5 + 0.01 * ln(1000)) / 6] * 3, [(0.5 + 0.01 * ln(150)) / 4, _, (0.5 + 0.01 * ln(150)) / 4]],
    ),
    "glm5_agentic": Case(
        **CENTRED,
        # Ratio to the engine: 0.8 (at the bound: dropped), 1.1, 1.25 (above: dropped) | 0.5 (below: dropped), 1.15.
        # L = (-1.5 * 1.1 ln 0.55 + 0.5 * 1.15 ln 0.6) / 5 tokens
        policy=PAIR["policy"],
        rollout=[[0.5, 0.5, 0.08], [0.2, _, 0.6 / 1.15]],
        given=[1.5, -0.5],
        loss=(-1.65 * ln(0.55) + 0.575 * ln(0.6)) / 5,
        gradient=[[0, -0.33, 0], [0, _, 0.115]],
    ),
    "kpop": Case(
        **NORMALISED,
        # Binary KL of old and rollout, both ways:
        #   0.2, 0.1: 0.2 ln 2 + 0.8 ln(8/9) = 0.0444 and 0.0367, kept, w = 2; 0.5, 0.5: 0, kept, w = 1
        #   0.2, 0.6: 0.2 ln(1/3) + 0.8 ln 2 = 0.3348, dropped | 0.2, 0.5: 0.2 ln 0.4 + 0.8 ln 1.6 = 0.1927, dropped
        #   0.3, 0.2: 0.0282 and 0.0257, kept, w = 1.5
        # From there on as icepop.
        policy=PAIR["policy"],
        old=PAIR["old"],
        rollout=[[0.1, 0.5, 0.6], [0.5, _, 0.2]],
        given=[1.5, -0.5],
        loss=-0.5,
        gradient=[[0, -0.275, 0], [0, _, 0.375]],
    ),
    "aspo": Case(
        **NORMALISED,
        # The token of highest entropy in each response (the first) has the range 0.6 to 1.4, the others 0.8 to 1.2.
        # rho 1.3, 2, 0.25 | 0.7, 2 | 0.5, 0.7, 4 | 2, 1.1
        #   A = 1.5:  1.3 -> -1.5/1.3 (within 1.4); 2 -> 1/1.2: -1.25 (clipped); 0.25 -> 4, above 3: -3 * 1.5 ln 0.1
        #   A = -0.5: 0.7 -> 0.35 (within 0.6); 2 -> 1
        #   A = -1:   0.5 -> 0.6 (clipped); 0.7 -> 0.8 (clipped); 4, above 3: 3 ln 0.8
        #   A = 1:    2 -> -1/1.4 (clipped); 1.1 -> -1/1.1
        # k3 of e^u = 0.5: ln 2 - 0.5, with gradient 1 - 0.5; 0 elsewhere.
        policy=SPLIT["policy"],
        old=[[0.4, 0.2, 0.4], [0.2, _, 0.3], [0.2, 0.5, 0.2], [0.3, 0.5, _]],
        ref=[[0.26, 0.4, 0.1], [0.14, _, 0.6], [0.1, 0.35, 0.8], [0.6, 0.55, _]],
        extras={"entropy": ENTROPIES},
        given=[1.5, -0.5, -1, 1],
        loss=(
            (-1.5 / 1.3 - 1.25 - 4.5 * ln(0.1) + 0.001 * (ln(2) - 0.5)) / 3
            + 1.35 / 2
            + (1.4 + 3 * ln(0.8)) / 3
            + (-1 / 1.4 - 1 / 1.1) / 2
        )
        / 4,
        gradient=[
            [(-1.5 / 1.3 + 0.0005) / 12, 0, -4.5 / 12],
            [0.35 / 8, _, 1 / 8],
            [0, 0, 3 / 12],
            [0, -1 / 8.8, _],
        ],
    ),
    "archer": Case(
        **NORMALISED,
        # The token of highest entropy in each response (the first) has the range 0.5 to 1.5, the others 0.8 to 1.2.
        # rho 1.3, 2, 0.25 | 0.7, 2 | 0.4, 0.7, 16 | 2, 1.1
        #   A = 1.5:  1.3 -> -1.95 (within 1.5); 2 -> -1.8 (clipped); 0.25 -> -0.375
        #   A = -0.5: 0.7 -> 0.35 (within 0.5); 2 -> 1
        #   A = -1:   0.4 -> 0.5 (clipped); 0.7 -> 0.8 (clipped); 16 -> 10 (dual clip)
        #   A = 1:    2 -> -1.5 (clipped); 1.1 -> -1.1
        # k3 of the first response: e^u = 0.5, of high entropy: no term; 2: 1 - ln 2, with gradient 1 - 2; 1: 0.
        # Two of its three tokens have a term, which counts 3/2 of it. The other responses' are 0.
        policy=SPLIT["policy"],
        old=[[0.4, 0.2, 0.4], [0.2, _, 0.3], [0.25, 0.5, 0.05], [0.3, 0.5, _]],
        ref=[[0.26, 0.8, 0.1], [0.14, _, 0.6], [0.1, 0.35, 0.8], [0.6, 0.55, _]],
        extras={"entropy": ENTROPIES},
        given=[1.5, -0.5, -1, 1],
        loss=((-4.125 + 0.0015 * (1 - ln(2))) / 3 + 1.35 / 2 + 11.3 / 3 - 2.6 / 2) / 4,
        gradient=[
            [-1.95 / 12, -0.0015 / 12, -0.375 / 12],
            [0.35 / 8, _, 1 / 8],
            [0, 0, 0],
            [0, -1.1 / 8, _],
        ],
    ),
    "ce_gppo": Case(
        **NORMALISED,
        # A = 1.5:  rho 2 -> -1.2 * 1.5 = -1.8, with that gradient; -1.65; -0.75. Sum -4.2.
        # A = -0.5: rho 0.5 -> 0.75 * 0.8 * 0.5 = 0.3, with that gradient; 1.
        # L = (-4.2 + 1.3) / 5 tokens
        **PAIR_WITHOUT_REFERENCE,
        given=[1.5, -0.5],
        loss=-0.58,
        gradient=[[-0.36, -0.33, -0.15], [0.06, _, 0.2]],
    ),
    "fipo": Case(
        **NORMALISED,
        # g = 2^(-1/32) = 0.978572062087. rho 2, 1.1, 0.5 | 12 (above 10: not in F), a hole, 2
        #   F = ln 2 + g ln 1.1 - g^2 ln 2 = 0.122653914894, weight 1.130492995...; ln 1.1 - g ln 2 < 0, weight 1; 1
        #   F = g^2 ln 2 = 0.66, weight 1.2, but A < 0 and 12 above 10: 1; ln 2, weight 1.2
        #   A = 1.5:  rho 2 -> -1.28 * 1.5 * 1.130... (clipped); -1.65; -0.75
        #   A = -0.5: rho 12 -> 10 * 0.5 = 5 (dual clip); 2 -> 2 * 0.6 = 1.2
        # L = their sum / 5 tokens
        policy=PAIR["policy"],
        old=[[0.2, 0.5, 0.2], [0.1 / 12, _, 0.3]],
        given=[1.5, -0.5],
        loss=(-1.92 * exp(ln(2) + 2 ** (-1 / 32) * ln(1.1) - 2 ** (-1 / 16) * ln(2)) - 2.4 + 6.2) / 5,
        gradient=[[0, -0.33, -0.15], [0, _, 0.24]],
    ),
    "bapo": Case(
        **NORMALISED,
        # A = 0.5: gains 0.5 (c + 1.1 + 0.5); A = -0.875: losses 0.875 (max(0.5, c) + 2). A share of 0.4 wants gains of
        # 2/3 of the losses. At 0.6, 1.2: 1.4 against 2.275. 0.5 (c + 1.6) >= 1.5167 from 1.4333 on: the ceiling stops
        # at 1.45.
        #   A = 0.5:    rho 2 -> -1.45 * 0.5 = -0.725 (clipped); -0.55; -0.25
        #   A = -0.875: rho 0.5 -> 0.6 * 0.875 = 0.525 (clipped); 1.75
        # L = 0.75 / 5 tokens
        **PAIR_WITHOUT_REFERENCE,
        given=[0.5, -0.875],
        loss=0.15,
        gradient=[[0, -0.11, -0.05], [0, _, 0.35]],
    ),
    "m2po": Case(
        **NORMALISED,
        # Harmful, A (rho - 1) > 0: d^2 = ln(2)^2 = 0.48, ln(1.1)^2 = 0.009 | ln(2)^2; mean 0.32, above 0.04.
        # Cut to 0.009 they sum to 0.03, below 3 * 0.04; to 0.48 to 0.97: tau = ln 1.1, range 1/1.1 to 1.1.
        #   A = 1.5:  -1.65 (clipped); -1.65 (the token that has the range, clipped as well); -0.75
        #   A = -0.5: 0.5 / 1.1 (clipped); 1. L = (-3.05 + 0.5 / 1.1) / 5 tokens
        **PAIR_WITHOUT_REFERENCE,
        given=[1.5, -0.5],
        loss=(-3.05 + 0.5 / 1.1) / 5,
        gradient=[[0, 0, -0.15], [0, _, 0.2]],
    ),
    "clip_cov": Case(
        **NORMALISED,
        # A - mean A: mean (3 * 3 - 2 * 2)/5 = 1, so 2 | -3. ln p - mean: mean (ln 0.022 + ln 0.06)/5 = -1.3260, so
        # 0.4097, 0.7282, -0.9766 | -0.9766, 0.8152. Covariances 0.82, 1.46, -1.95 | 2.93, -2.45: candidates are the
        # second token (rho 1.1) and the fourth (rho 1), neither clipped. One is drawn, the one with the smaller number.
        #   A = 3: -3.6 (clipped); -3.3; -1.5. A = -2: 0 (drawn); 4. L = -4.4 / 5 tokens
        policy=PAIR["policy"],
        old=[[0.2, 0.5, 0.2], [0.1, _, 0.3]],
        extras={"draws": numbers([[0.1, 0.6, 0.2], [0.4, _, 0.3]], float("nan"))},
        given=[3, -2],
        loss=-0.88,
        gradient=[[0, -0.66, -0.3], [0, _, 0.8]],
    ),
    "kl_cov": Case(
        **NORMALISED,
        # A - mean A: 2.4 | -3.6; ln p - mean as clip_cov. Highest covariance: -3.6 * -0.9766 = 3.52, the fourth
        #   token's.
        #   A = 3: -6; -3.3; -1.5. A = -3: 1.5 + ln 2; 6. L = (-3.3 + ln 2) / 5 tokens
        # The penalty's gradient is -1, rho being below 1.
        **PAIR_WITHOUT_REFERENCE,
        given=[3, -3],
        loss=(-3.3 + ln(2)) / 5,
        gradient=[[-1.2, -0.66, -0.3], [0.1, _, 1.2]],
    ),
}
