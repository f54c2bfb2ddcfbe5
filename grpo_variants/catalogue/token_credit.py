"""Members that give the tokens of a response advantages of their own, or weigh responses by them."""

from __future__ import annotations

from grpo_variants.advantage.token_credit import EntropyResponses, EntropyTokens, OptimalToken
from grpo_variants.catalogue.formulas import CLIPPED_TOKENS
from grpo_variants.catalogue.references import LI_OTB, TAN
from grpo_variants.objective.aggregation import SequenceMean, TokenMean
from grpo_variants.objective.ratio import SequenceArithmetic, TokenRatio
from grpo_variants.objective.surrogate import Clip
from grpo_variants.variant import Variant

TOKEN_CREDIT: tuple[Variant, ...] = (
    Variant(
        name="gtpo_entropy",
        credit=EntropyTokens(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(),
        summary="Right tokens are rewarded by entropy, wrong ones punished by certainty, each side normalised.",
        formula=(
            r"\tilde r^+_{it} = \alpha_1 r_i + \alpha_2 \frac{H_{it}}{\sum_k H_{kt}} d_t,\quad "
            r"\tilde r^-_{jt} = -\alpha_1 - \alpha_2 \frac{1/H_{jt}}{\sum_k 1/H_{kt}} h_t,\quad "
            r"A^\pm = \frac{\tilde r^\pm - \operatorname{mean}\tilde r^\pm}{\operatorname{std}\tilde r^\pm},\quad "
            rf"{CLIPPED_TOKENS}"
        ),
        note=(
            "The sums run over the right, or the wrong, responses of the prompt that still have a token at t; d_t "
            "and h_t are their numbers. One implementation takes the statistics over the whole batch, which is "
            "not done here. GTPO of arXiv 2508.03772 is another algorithm."
        ),
        confirmed=(
            "The shaped rewards with alpha of 1 and 0.1, each side of the group by itself, in two implementations, "
            "neither of them the authors': bliskavets/aiim_research, "
            "experiments/exp_002_gtpo_and_grpo_s/src/entropy_utils.py, which cites the paper's equations 8 to 11, and "
            "teilomillet/textpolicy, textpolicy/algorithms/grpo.py 742 to 1060."
        ),
        unconfirmed=(
            "Neither the paper's text nor code of its authors could be read. One of the two implementations clips "
            "entropies to 0.2 and 0.28, the other takes these numbers for the clip range; here they are neither."
        ),
        references=(TAN,),
    ),
    Variant(
        name="grpo_s",
        credit=EntropyResponses(),
        ratio=SequenceArithmetic(),
        surrogate=Clip(),
        aggregation=SequenceMean(),
        summary="The response's form of gtpo_entropy: mean entropies, and the mean of the token ratios.",
        formula=(
            r"\hat r^+_i = \beta_1 r_i + \beta_2 \frac{\hat H_i}{\sum_k \hat H_k} n,\quad "
            r"\hat r^-_j = -\beta_1 - \beta_2 \frac{1/\hat H_j}{\sum_k 1/\hat H_k} m,\quad "
            r"A_i = \frac{\hat r_i - \operatorname{mean}_g\hat r}{\operatorname{std}_g\hat r},\quad "
            r"\hat w_i = \frac{1}{l_i}\sum_t \rho_{it},\quad "
            r"L = -\frac{1}{N}\sum_i \min(\hat w_i A_i, \operatorname{clip}(\hat w_i, 1\mp 0.2) A_i)"
        ),
        note=(
            "Hats are means over a response's tokens; n and m are the numbers of right and wrong responses of the "
            "prompt. Mean and deviation are those of the whole group. By side (credit.over=side), as in gtpo_entropy, "
            "a wrong response can get a positive advantage: with two right and two wrong ones, one of each has 0.707 "
            "and the other -0.707. The implementation that was found calls a response right where its advantage "
            "within the group is positive, so that a group that is all right counts as wrong there; here a response is "
            "right where its reward is above credit.above."
        ),
        confirmed=(
            "The shaped rewards with beta of 1 and 0.1, their mean and deviation over the group, and the mean of the "
            "token ratios, in one implementation, which is not the authors': bliskavets/aiim_research, "
            "experiments/exp_002_gtpo_and_grpo_s/src/entropy_utils.py and src/grpo_s_trainer.py. It cites the paper's "
            "equations 8 to 11."
        ),
        unconfirmed=(
            "Neither the paper's text nor code of its authors could be read; the clip range of 0.2 is GRPO's. That "
            "implementation holds entropies between 0.2 and 0.28, which is not done here."
        ),
        references=(TAN,),
    ),
    Variant(
        name="otb",
        credit=OptimalToken(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(),
        summary="A baseline for each token, weighted by how far the tokens before it moved the policy: least variance.",
        formula=(
            r"W_{it} = \sum_{j\le t}\Big(1 - 2\pi_{ij} + \sum_v \pi_{ij}(v)^2\Big),\quad "
            r"A_{it} = G_{it} - \frac{\sum_k G_{kt} W_{kt}}{\sum_k W_{kt} + \epsilon},\quad "
            rf"{CLIPPED_TOKENS}"
        ),
        note=(
            "Where only the longest response is left, verl's baseline is 0, which is taken; credit.tail=own goes "
            "on with the formula, which gives 0 there. verl weighs W by squared rollout weights where it has "
            "them; not done here."
        ),
        confirmed=(
            "The paper, and verl-project/verl, verl/trainer/ppo/core_algos.py "
            "(compute_optimal_token_baseline_advantage)."
        ),
        references=(LI_OTB,),
    ),
)
