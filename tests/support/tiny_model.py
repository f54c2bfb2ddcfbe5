"""A Llama of a few thousand parameters and a three-word tokenizer, made in code: the real trainers at test speed."""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
    set_seed,
)

END, ZERO, ONE = 0, 1, 2


def tokenizer():
    words = Tokenizer(models.WordLevel({"<end>": END, "0": ZERO, "1": ONE}, unk_token="<end>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>", padding_side="left")


_SIZE = dict(
    vocab_size=3,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=4,
    max_position_embeddings=32,
    bos_token_id=None,
    eos_token_id=END,
    pad_token_id=END,
    tie_word_embeddings=False,
)


def model(seed=0):
    set_seed(seed)
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=4, **_SIZE))


def mixture_of_experts(seed=0):
    """The same size with four experts, two of them a token, and a load-balancing loss."""
    set_seed(seed)
    experts = dict(num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.5)
    return MixtralForCausalLM(MixtralConfig(num_key_value_heads=2, output_router_logits=True, **experts, **_SIZE))


def dataset(rows=64):
    bits = {1: "0 0 1", 2: "0 1 0", 3: "0 1 1", 4: "1 0 0"}
    return Dataset.from_list([{"prompt": bits[i % 4 + 1], "t": i % 4 + 1} for i in range(rows)])


def exact(completion_ids, t, **kwargs):
    """1 where the completion is t ones and the end."""
    return [float(ids == [ONE] * n + [END]) for ids, n in zip(completion_ids, t, strict=True)]


def ones(completion_ids, **kwargs):
    """Share of ones, which differs between almost all completions."""
    return [sum(token == ONE for token in ids) / 6 for ids in completion_ids]
