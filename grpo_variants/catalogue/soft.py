"""Members that bend the objective away from large ratios instead of clipping each token."""

from __future__ import annotations

from dataclasses import replace

from grpo_variants.advantage.baseline import LeaveOneOut, Partition
from grpo_variants.advantage.scale import NoScale
from grpo_variants.catalogue import references as papers
from grpo_variants.catalogue.bases import GRPO
from grpo_variants.objective.aggregation import SequenceMean, SequenceSum
from grpo_variants.objective.ratio import SequenceProduct
from grpo_variants.objective.surrogate import Dro, Gmpo, Quadratic, Sapo
from grpo_variants.variant import Variant

SOFT: tuple[Variant, ...] = (
    replace(
        GRPO,
        name="sapo",
        surrogate=Sapo(),
        summary="A soft gate in place of the clip: a token fades out with its ratio, faster for negative advantages.",
        formula=(
            r"L = -\frac{1}{N}\sum_i\frac{1}{l_i}\sum_t \frac{4}{\tau}\,\sigma(\tau(\rho_{it} - 1))\, A_i,\quad "
            r"\tau = 1 \text{ if } A_i > 0, \text{ else } 1.05"
        ),
        confirmed="The gate and the temperatures of 1 and 1.05 in the paper; TRL and verl have the same.",
        references=(papers.GAO_SAPO,),
    ),
    replace(
        GRPO,
        name="gmpo",
        surrogate=Gmpo(),
        summary="Geometric mean of a response's clipped ratios, less moved by one outlier than their mean.",
        formula=(
            r"L = -\frac{1}{N}\sum_i A_i \exp\Big(\frac{1}{l_i}\sum_t d^c_{it}\Big),\quad d^c_{it} = "
            r"\min(\log\rho_{it}, 0.4) \text{ if } A_i > 0, \text{ else } \max(\log\rho_{it}, -0.4)"
        ),
        confirmed=(
            "callsys/GMPO, train_zero_math_gmpo.py 675 to 688 (the clip in log space) and "
            "scripts/qwen2.5-math-7b-gmpo.sh (0.4)."
        ),
        references=(papers.ZHAO_GMPO,),
        note=(
            "The paper's text gives the bounds as ratios, e^-0.4 and e^0.4; authors, TRL and verl clip in log "
            "space, which is the same. A clip of the ratio to 1 -+ 0.4 is not."
        ),
    ),
    replace(
        GRPO,
        name="hmpo",
        surrogate=Gmpo(mean="harmonic"),
        summary="Harmonic mean of a response's clipped ratios: tokens that have become rarer get most of the gradient.",
        formula=(
            r"L = -\frac{1}{N}\sum_i A_i \frac{l_i}{\sum_t e^{-d^c_{it}}},\quad d^c_{it} = "
            r"\min(\log\rho_{it}, 0.4) \text{ if } A_i > 0, \text{ else } \max(\log\rho_{it}, -0.4)"
        ),
        confirmed=(
            "callsys/GMPO, train_zero_math_hmpo.py 675 to 703 (the mean and the clip in log space) and "
            "scripts/qwen2.5-math-7b-hmpo.sh (0.4). It stands beside GMPO in that repository; no paper that was read "
            "describes it."
        ),
        references=(papers.ZHAO_GMPO,),
        note=(
            "Another repository has a harmonic mean policy optimization of its own, with power means. The authors' "
            "loss ignores the mask of unfinished responses; here overlong=keep is the same."
        ),
    ),
    replace(
        GRPO,
        name="simple_policy_optimization",
        surrogate=Quadratic(),
        summary="Simple Policy Optimization: a quadratic penalty on the ratio whose optimum is where PPO would clip.",
        formula=(
            r"L = \frac{1}{N}\sum_i\frac{1}{l_i}\sum_t\Big[-\rho_{it} A_i + "
            r"\frac{|A_i|}{2\epsilon}(\rho_{it} - 1)^2\Big],\quad \epsilon = 0.2"
        ),
        confirmed=(
            "The loss, with 0.2: the paper, and MyRepositories-hub/Simple-Policy-Optimization, mujoco/trainer.py 106 "
            "to 110 and mujoco/main.py 35."
        ),
        unconfirmed=(
            "The authors estimate advantages with a critic and have no run with a group's; GRPO's advantages and "
            "its mean over responses are put in their place."
        ),
        references=(papers.XIE_SPO,),
        note=(
            "The paper's own experiments estimate advantages with a critic; GRPO's take their place. "
            "Single-stream policy optimisation (arXiv 2509.13232), also called SPO, is another algorithm."
        ),
    ),
    replace(
        GRPO,
        name="kimi_k15",
        scale=NoScale(),
        ratio=SequenceProduct(bound_low=None, bound_high=None),
        surrogate=Dro(),
        aggregation=SequenceSum(),
        summary="Mirror descent of Kimi k1.5: policy gradient with a quadratic penalty on the response's log ratio.",
        formula=(
            r"A_i = r_i - \operatorname{mean}_g r,\quad L = \frac{1}{N}\sum_i\Big[-A_i \sum_t \log\pi(y_{it}) + "
            r"\frac{\tau}{2}\Big(\sum_t \log\rho_{it}\Big)^2\Big],\quad \tau = 0.1"
        ),
        confirmed="The loss and the centred rewards: the report, section 2.3.2.",
        unconfirmed="The report does not give tau; 0.1 is ROLL's.",
        references=(papers.KIMI,),
        note=(
            "The paper penalises the log ratio of the whole response and does not publish tau; 0.1 is ROLL's. "
            "verl's and Tinker's dro and ROLL's kimi15 penalise each token's: `kimi_k15,ratio=token`."
        ),
    ),
    replace(
        GRPO,
        name="pmd_mean",
        baseline=LeaveOneOut(),
        scale=NoScale(),
        ratio=SequenceProduct(bound_low=None, bound_high=None),
        surrogate=Dro(tau=0.01),
        aggregation=SequenceMean(),
        summary="Policy mirror descent of Kimi k1.5 with leave-one-out rewards and a mean over each response.",
        formula=(
            r"A_i = r_i - \frac{1}{G-1}\sum_{j\ne i} r_j,\quad L = \frac{1}{N}\sum_i\frac{1}{l_i}\Big[-A_i \sum_t "
            r"\log\pi(y_{it}) + \frac{\tau}{2}\Big(\sum_t \log\rho_{it}\Big)^2\Big],\quad \tau = 0.01"
        ),
        confirmed=(
            "The authors' repository (horizon-rl/OpenKimi at 3126d4c8): the loss `opmd` in "
            "openkimi/pmd/core_algos.py, lines 105 to 206; estimator rloo as PMD-mean in openkimi/pmd/README.md; tau "
            "of 0.01, seq-mean-token-mean, no KL and no entropy bonus in examples/math/run_pmd_dapo17k_qwen25-7b.sh, "
            "lines 23 to 28 and 50 to 90. Of the paper the abstract was read."
        ),
        references=(papers.XU_PMD, papers.KIMI),
        note=(
            "The authors write the loss as a square, tau/2 (A/tau - D)^2 / l with D the response's log ratio: the same "
            "gradient, and another value. Their seq-mean-token-sum-norm divides by the padded length in place of the "
            "response's (aggregation=constant). It is `kimi_k15` with another baseline, another mean and another tau. "
            "16 updates are made from a batch there, so that the penalty acts."
        ),
    ),
    Variant(
        name="pmd_partition",
        baseline=Partition(),
        scale=NoScale(),
        ratio=SequenceProduct(bound_low=None, bound_high=None),
        surrogate=Dro(tau=0.01),
        aggregation=SequenceMean(),
        summary="Policy mirror descent whose baseline is the log-partition function of the group's other rewards.",
        formula=(
            r"A_i = r_i - \max\Big(\tau\log\frac{1}{G-1}\sum_{j\ne i} e^{r_j/\tau},\ \max_g r + \tau\ln 10^{-8}\Big)"
            r",\quad L = \frac{1}{N}\sum_i\frac{1}{l_i}\Big[-A_i \sum_t \log\pi(y_{it}) + \frac{\tau}{2}"
            r"\Big(\sum_t \log\rho_{it}\Big)^2\Big],\quad \tau = 0.01"
        ),
        confirmed=(
            "The authors' repository (horizon-rl/OpenKimi at 3126d4c8): the advantage `ploo` in "
            "openkimi/pmd/core_algos.py, lines 36 to 102, the loss `opmd` there, lines 105 to 206; tau of 0.01 for "
            "both in examples/math/run_pmd_dapo17k_qwen25-7b.sh. Of the paper the abstract was read."
        ),
        references=(papers.XU_PMD, papers.KIMI),
        note=(
            "The formula has no bound (baseline.floor=none). In the authors' code the mean of the others' "
            "exponentials, relative to the best of the group, is at least 1e-8: the only right response of a group has "
            "an advantage of 0.184 in place of 1. A group of one keeps its reward there (singleton=raw). Their paper "
            "recommends pmd_mean. The loss is that of `pmd_mean`."
        ),
    ),
)
