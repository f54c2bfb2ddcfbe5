"""Where a member's paper and its authors' code differ in a value or a rule: what each has, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One difference between a member's paper and its authors' code.

    member: a name of the catalogue. about: the value or rule. paper, code: what each has. section: where the paper has
    it. file: where the code has it, with the repository, a path and lines. taken: which of the two the member is.
    other: options that make the other of it, `key=value,key=value`, as in a spec string.
    """

    member: str
    about: str
    paper: str
    section: str
    code: str
    file: str
    taken: Literal["paper", "code"]
    other: str

    @property
    def spec(self) -> str:
        """The spec string of the one that is not taken."""
        return f"{self.member},{self.other}"


_ARCHER = "wizard-III/Archer2.0, verl/workers/actor/dp_actor.py 402 to 424"

DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        member="dapo",
        about="bound of a negative advantage's loss",
        paper="none",
        section="equation 8",
        code="at a ratio of 10",
        file="verl-project/verl-recipe, dapo/run_dapo_qwen2.5_32b.sh",
        taken="paper",
        other="surrogate.dual=10",
    ),
    Difference(
        member="dapo",
        about="overlong responses",
        paper="left out (overlong filtering), before the soft punishment is added",
        section="table 1",
        code="punished over the last 4096 tokens, none left out",
        file="verl-project/verl-recipe, dapo/run_dapo_qwen2.5_32b.sh",
        taken="paper",
        other="overlong=penalty,overlong.buffer=4096",
    ),
    Difference(
        member="remax",
        about="mean, and KL",
        paper="sum over a response's tokens, no KL",
        section="algorithm 1",
        code="mean over the tokens, and each token's own k1 penalty of 0.05",
        file="liziniu/ReMax, step3_rlhf_finetuning/remax_trainer.py 236 to 302",
        taken="paper",
        other="aggregation=token_mean,kl=k2,kl.beta=0.05,kl.bound=none",
    ),
    Difference(
        member="mc_grpo",
        about="factor for the responses with an advantage",
        paper="none",
        section="by the readme; the paper itself was not read",
        code="a group's size over their number, for GSM8K; none for MATH",
        file="lotusroot-kim/MC-GRPO, src/open_r1/grpo_trainer_gsm.py 2088 to 2110",
        taken="paper",
        other="scale.compensate=group",
    ),
    Difference(
        member="qae",
        about="quantile of a group's rewards",
        paper="the smallest reward at which the distribution reaches K",
        section="section 4.1, equations 3 and 4",
        code="interpolated between two rewards",
        file="junkangwu/QAE, README.md",
        taken="paper",
        other="baseline.interpolation=linear",
    ),
    Difference(
        member="gdpo",
        about="mean, and KL",
        paper="mean over a response's tokens, then over responses; the KL is left out for clarity",
        section="section 2, equations 3 and 5",
        code="token mean and a KL of 0.04, by its trainer's defaults",
        file="NVlabs/GDPO, trl-GDPO/trl-0.18.0-gdpo/trl/trainer/grpo_config.py",
        taken="paper",
        other="kl=k3,kl.beta=0.04,aggregation=token_mean",
    ),
    Difference(
        member="raft_pp",
        about="mean, and KL",
        paper="mean over a response's tokens, then over responses; no KL",
        section="equation 6, as two independent notes quote it",
        code="token mean, and a KL of 0.001",
        file="RLHFlow/Minimal-RL, verl/trainer/ppo/core_algos.py 406 to 470",
        taken="code",
        other="aggregation=sequence_mean,kl=none",
    ),
    Difference(
        member="reinforce_rej",
        about="ratio",
        paper="PPO's clipped ratio",
        section="equation 5, as independent notes quote it",
        code="none, the log-probability itself",
        file="RLHFlow/Minimal-RL, verl/trainer/ppo/core_algos.py 473 to 537",
        taken="code",
        other="ratio=token,surrogate=clip",
    ),
    Difference(
        member="cppo",
        about="what the largest are of",
        paper="of each prompt's responses",
        section="its formula, by the readme",
        code="of all responses of the batch",
        file="lzhxmu/CPPO, cppo_verl/recipe/cppo/src/cppo_ray_trainer.py 309 to 328",
        taken="paper",
        other="selection.over=batch",
    ),
    Difference(
        member="unlikeliness",
        about="place of a response, and its likelihood",
        paper="from 1 for the least likely, by the sum of its log-probabilities",
        section="the formula of the rank penalty, as third-party notes quote it",
        code="from 0, by their mean",
        file="AndreHe02/rewarding-unlikely-release, verl/trainer/ppo/ray_lean_trainer.py 630 to 684",
        taken="code",
        other="transform.first=one,transform.of=sum",
    ),
    Difference(
        member="dcpo",
        about="clip range, and mean",
        paper="0.16 and 0.2, mean over a response's tokens",
        section="equation 8 and appendix A.9",
        code="0.2 and 0.28, token mean",
        file="lime-RL/DCPO, recipe/dcpo/run_dcpo.sh 82 to 87",
        taken="paper",
        other="surrogate.low=0.2,surrogate.high=0.28,aggregation=token_mean",
    ),
    Difference(
        member="dcpo",
        about="deviation of a group",
        paper="of the population",
        section="equation 8",
        code="of the sample",
        file="lime-RL/DCPO, verl/trainer/ppo/core_algos.py 386 to 479",
        taken="code",
        other="scale.ddof=0",
    ),
    Difference(
        member="dppo_tv",
        about="sum over a response",
        paper="undivided",
        section="the formula of its objective",
        code="divided by a constant length",
        file="verl-project/verl, examples/dppo_trainer/run_qwen30b_dppo.sh",
        taken="code",
        other="aggregation=sequence_sum",
    ),
    Difference(
        member="dppo_kl",
        about="sum over a response",
        paper="undivided",
        section="the formula of its objective",
        code="divided by a constant length",
        file="verl-project/verl, examples/dppo_trainer/run_qwen30b_dppo.sh",
        taken="code",
        other="aggregation=sequence_sum",
    ),
    Difference(
        member="pmd_partition",
        about="baseline of the best by far",
        paper="the logarithm of the mean of the others' exponentials",
        section="its formula, by the readme",
        code="the same, of a mean that is at least 1e-8 of the best one's",
        file="horizon-rl/OpenKimi, openkimi/pmd/core_algos.py 36 to 102",
        taken="code",
        other="baseline.floor=none",
    ),
    Difference(
        member="aspo",
        about="clip range",
        paper="0.2 for every token",
        section="section 6 and appendix B",
        code="0.2, and 0.4 for tokens above the 80 % quantile of their response's entropies",
        file=_ARCHER,
        taken="code",
        other="surrogate.fraction=none",
    ),
    Difference(
        member="ce_gppo",
        about="groups without signal",
        paper="kept",
        section="its formula has no filter",
        code="drawn again",
        file="Kwai-Klear/CE-GPPO, recipe/dapo/7B_perf_run_gppo_v1_beta1_075_beta2_1_ours_math.sh",
        taken="paper",
        other="filter=zero_variance",
    ),
    Difference(
        member="bapo",
        about="which bound moves first, how far, and the target",
        paper="the ceiling to 3, then the floor to 0.9; a share of 0.4; no dual clip",
        section="section 5.1 and algorithm 1",
        code="the floor to 0.8, then the ceiling to 2; a share of 0.5; dual clip at 3",
        file="WooooDyy/BAPO, recipe/bapo/config/bapo_trainer.yaml 12 to 22",
        taken="paper",
        other=(
            "surrogate.first=floor,surrogate.floor_end=0.8,surrogate.ceiling_end=2,surrogate.target=0.5,"
            "surrogate.dual=3"
        ),
    ),
    Difference(
        member="m2po",
        about="what happens beyond the range",
        paper="the largest harmful log ratios are masked until the mean square of the others is within the budget",
        section="algorithm 1",
        code="they are clipped at the range that the budget leaves, which is tighter",
        file="Infini-AI-Lab/M2PO, verl/trainer/ppo/core_algos.py 683 to 867",
        taken="code",
        other="surrogate.rule=mask",
    ),
)
