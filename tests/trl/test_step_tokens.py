"""Characters to tokens with real tokenizers: offsets and decoding agree, and both are right."""

import random

import pytest
from support import tiny_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from grpo_variants.rollout.steps import _by_offsets, _by_prefixes, step_spans, token_ends

CORPUS = [
    "Step 1: take 3 of 10.\n\nStep 2: that is 7, naïve “quoted” 数学 🙂.\n",
    "The answer is 42.\n",
    "a b  c\td\n",
]


@pytest.fixture(scope="module")
def byte_level():
    """A byte-level BPE, as most language models have it, of 300 tokens: most foreign characters take several."""
    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    own.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<eos>", pad_token="<pad>")


def texts():
    draw = random.Random(0)
    letters = "ab \n\n1.:é数学🙂\t "
    return [*CORPUS, *("".join(draw.choices(letters, k=draw.randint(1, 30))) for _ in range(60))]


def test_offsets_and_decoding_agree(byte_level):
    compared = 0
    for text in texts():
        ids = [*byte_level(text)["input_ids"], byte_level.eos_token_id]
        ends = list(range(1, len(text) + 1))
        offsets = _by_offsets(byte_level, ids, text, ends)
        if offsets is not None:
            compared += 1
            assert offsets == _by_prefixes(byte_level, ids, text, ends), repr(text)
    assert compared > 50


def test_a_split_character_is_complete_with_its_last_token(byte_level):
    ids = byte_level("x🙂y\nz")["input_ids"]
    first = byte_level("x")["input_ids"]
    rest = byte_level("y\nz")["input_ids"]
    (token,) = token_ends(byte_level, ids, "x🙂y\nz", [2])
    assert len(ids) - len(rest) - len(first) > 1
    assert token == len(ids) - len(rest) - 1


def test_tokens_that_the_tokenizer_would_not_write_are_decoded(byte_level):
    """A policy samples other tokens than encoding gives: here one byte a token."""
    text = "Step 1: take\nStep 2: 数\n"
    alphabet = byte_level.convert_ids_to_tokens(byte_level(text)["input_ids"])
    ids = [byte_level.convert_tokens_to_ids(letter) for token in alphabet for letter in token]
    assert _by_offsets(byte_level, ids, text, [13]) is None
    spans = step_spans(text)
    assert token_ends(byte_level, [*ids, byte_level.eos_token_id], text, [end for _, end in spans]) == [12, len(ids)]


def test_a_tokenizer_that_leaves_the_spaces_out_is_decoded():
    words = tiny_model.tokenizer()
    ids = [tiny_model.ONE, tiny_model.ZERO, tiny_model.ONE, tiny_model.END]
    assert _by_offsets(words, ids, "1 0 1", [1]) is None
    assert token_ends(words, ids, "1 0 1", [1, 2, 3, 5]) == [0, 1, 1, 3]
