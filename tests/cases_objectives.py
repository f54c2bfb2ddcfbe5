"""What the tests try the wider family's surrogates, corrections and token filters on."""

# Values of fields that a random spec string draws from.
FIELD_VALUES = {
    "surrogate.cap": (None, 1.1, 5.0),
    "surrogate.floor": (0.0, 0.4),
    "surrogate.ceiling": (1.0, 1.5),
    "surrogate.tau": (0.1, 2.0),
    "surrogate.tau_pos": (0.5, 1.0),
    "surrogate.tau_neg": (1.05, 2.0),
    "surrogate.k_pos": (1.0, 2.0),
    "surrogate.k_neg": (2.0, 3.0),
    "surrogate.lambda_pos": (1.5, 3.0),
    "surrogate.lambda_neg": (1.0, 2.0),
    "surrogate.range": (0.2, 0.5),
}
# Why a random spec string may be refused.
REFUSALS = ("the largest weight is cap, or 1 + high",)

PRODUCT = "grpo,ratio=sequence_product"
# With the registered members these set every choice and every field.
SPECS = (
    "grpo,surrogate=cispo,surrogate.cap=1.2",
    "grpo,surrogate=cispo,surrogate.cap=none,surrogate.high=0.1,surrogate.low=0.1",
    "gspo,surrogate=cispo,surrogate.cap=1.1",
    "grpo,surrogate=sapo,surrogate.tau_pos=2,surrogate.tau_neg=0.5",
    "gspo,surrogate=sapo",
    "grpo,surrogate=gmpo,surrogate.low=0.1,surrogate.high=0.2",
    "grpo,surrogate=gmpo,ratio.anchor=rollout,correction=token_truncate,tokens=top_entropy",
    f"{PRODUCT},surrogate=vespo,surrogate.k_pos=1,surrogate.k_neg=2",
    f"{PRODUCT},surrogate=vespo,surrogate.lambda_pos=1,surrogate.lambda_neg=3",
    f"{PRODUCT},surrogate=topr,surrogate.floor=0.5,surrogate.ceiling=0.9",
    f"{PRODUCT},surrogate=topr,surrogate.ceiling=2",
    *(f"grpo,surrogate={s},surrogate.low=0.01,surrogate.high=0.02,surrogate.cap=1.1" for s in ("dppo_tv", "dppo_kl")),
    *(f"grpo,surrogate={s},surrogate.cap=none" for s in ("dppo_tv", "dppo_kl")),
    "grpo,surrogate=quadratic,surrogate.range=0.4",
    "gspo,surrogate=quadratic",
    "grpo,surrogate=dro,surrogate.tau=2",
    f"{PRODUCT},surrogate=dro,surrogate.tau=0.5",
)

# What a choice is tried on where its axis's base means nothing to it.
BASE_OF_CHOICE = {"vespo": PRODUCT, "topr": PRODUCT}
# Two values of each field that differ in something.
PAIRS = {
    "surrogate.cap": (0.9, 1.1),
    "surrogate.floor": (0.0, 0.7),
    "surrogate.ceiling": (1.0, 1.5),
    "surrogate.tau": (0.1, 0.5),
    "surrogate.tau_pos": (1.0, 2.0),
    "surrogate.tau_neg": (1.0, 2.0),
    "surrogate.k_pos": (1.0, 2.0),
    "surrogate.k_neg": (1.0, 2.0),
    "surrogate.lambda_pos": (1.0, 2.0),
    "surrogate.lambda_neg": (1.0, 2.0),
    "surrogate.range": (0.2, 0.4),
}
# Two values for one choice only, where the others' are too far apart or too close for it.
PAIRS_OF_CHOICE = {"dppo_kl surrogate.high": (0.01, 0.05), "dppo_kl surrogate.low": (0.01, 0.05)}
# Settings without which two values of a choice's field would be the same.
WITH = {"cispo surrogate.high": {"surrogate.cap": None}}
NEEDED = {"cispo": {"surrogate.cap": 1.1}}
