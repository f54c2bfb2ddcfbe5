"""Steps in text: where they end, and which token that is; ids and offsets checked by hand or by decoding."""

import asyncio
import re

import pytest

from grpo_variants.rollout.steps import Step, completion_text, step_ends, step_rewards, step_spans, token_ends


def cut(text, at):
    return [text[a:b] for a, b in step_spans(text, at)]


@pytest.mark.parametrize(
    ("text", "at", "steps"),
    [
        ("one\ntwo\nthree", "lines", ["one\n", "two\n", "three"]),
        ("one\n\n\ntwo\n", "lines", ["one\n\n\n", "two\n"]),  # blank lines are no steps
        ("\n one\ntwo", "lines", ["\n one\n", "two"]),
        ("one\ntwo\n \t\nthree", "paragraphs", ["one\ntwo\n \t\n", "three"]),
        ("Plan.\nStep 1: add\nStep 2: halve", "headings", ["Plan.\n", "Step 1: add\n", "Step 2: halve"]),
        ("**Step 1:** add\n## step 2. halve", "headings", ["**Step 1:** add\n", "## step 2. halve"]),
        ("Step 1: see\nstep 2 of that follows", "headings", ["Step 1: see\nstep 2 of that follows"]),
        ("a;b; c", re.compile(";"), ["a;", "b;", " c"]),
        ("- a\n- b", re.compile("(?m)(?=^- )"), ["- a\n", "- b"]),
        ("no separator", "paragraphs", ["no separator"]),
        (" \n ", "lines", [" \n "]),
        ("", "lines", [""]),
    ],
)
def test_where_steps_lie(text, at, steps):
    assert cut(text, at) == steps


def test_an_unknown_separator_is_named():
    with pytest.raises(
        ValueError,
        match=r"at='line' is unknown. Did you mean 'lines'\? Allowed: lines, paragraphs, headings, re.compile",
    ):
        step_spans("", "line")
    with pytest.raises(ValueError, match="at='line' is unknown"):
        step_rewards("line")


class Bytes:
    """A slow tokenizer of one byte a token, which drops tokens from 256 on as special."""

    is_fast = False

    def decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return bytes(i for i in ids if i < 256).decode(errors="replace")


EOS, MARK = 256, 257


def ids_of(text):
    return list(text.encode())


@pytest.mark.parametrize(
    ("text", "ids", "ends", "tokens"),
    [
        ("ab\ncd", [*ids_of("ab\ncd"), EOS], [3, 5], [2, 5]),  # the last step ends with the response, EOS included
        ("é\n¥b", [*ids_of("é\n¥b"), EOS], [1, 2, 3], [1, 2, 4]),  # two bytes a character: complete with the second
        ("🙂x", [*ids_of("🙂x"), EOS], [1], [3]),
        ("ab", [MARK, 97, MARK, 98, EOS], [1, 2], [1, 4]),  # a special token between: of the step that follows
        ("ab \n", [*ids_of("ab \n"), EOS], [1, 2], [0, 4]),  # nothing but white space is left: the response's end
        ("ab", ids_of("ab"), [2], [1]),  # truncated: no EOS
        ("", [EOS], [0], [0]),
        ("b\nc", [*ids_of(" b\nc "), EOS], [2, 3], [2, 5]),  # a message that the trainer has stripped
    ],
)
def test_the_token_at_which_a_prefix_is_complete(text, ids, ends, tokens):
    assert token_ends(Bytes(), ids, text, ends) == tokens


def test_a_text_of_other_tokens_is_refused():
    with pytest.raises(ValueError, match="its tokens do not decode to its text"):
        token_ends(Bytes(), ids_of("ab"), "ac", [1])


def ends_of(steps, text="ab\ncd"):
    return step_ends(steps, [*ids_of(text), EOS], lambda: text, Bytes())


@pytest.mark.parametrize(
    ("steps", "tokens"),
    [
        ([Step(end=2, reward=0.5), Step(end=5, reward=1)], [2, 5]),
        ([(2, 0.5), (5, 1)], [2, 5]),
        ([Step(text=(0, 3), reward=0.5), Step(text=(3, 5), reward=1)], [2, 5]),
        ([((0, 3), 0.5), [[3, 5], 1]], [2, 5]),
        ([((1, 2), 0.5)], [1]),  # what lies after the last step has no step
    ],
)
def test_positions_by_token_and_by_span(steps, tokens):
    assert ends_of(steps) == tokens


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([], "no steps; give one at least, or None"),
        ([(6, 1)], "a step ends at 6, outside a response of 6 tokens; allowed: 0 to 5."),
        ([((0, 6), 1)], "a step ends at 6, outside a text of 5 characters; allowed: 1 to 5."),
        ([((0, 0), 1)], "a step ends at 0, outside a text of 5 characters; allowed: 1 to 5."),
        ([(3, 1), (2, 1)], "a step that ends at 2 follows one that ends at 3; give them in order."),
        ([(3, 1), (3, 1)], "a step that ends at 3 follows one that ends at 3"),
        ([((0, 3), 1), ((0, 2), 1)], "a step that ends at 2 follows one that ends at 3"),
        ([(3, 1), ((0, 5), 1)], "some steps have end= and some text="),
        ([(-1, 1)], "end=-1 is no token's index"),
        ([(True, 1)], "end=True is no token's index"),
        ([((3, 1), 1)], r"text=\(3, 1\) is no span"),
        ([((0, 1, 2), 1)], r"text=\(0, 1, 2\) is no span"),
        ([0.5, 1.0], r"0.5 is no step; allowed: Step\(...\), \(token index, reward\), \(\(start, end\), reward\)"),
    ],
)
def test_positions_that_are_none_are_named(steps, text):
    with pytest.raises(ValueError, match=text):
        ends_of(steps)


@pytest.mark.parametrize("position", [{}, {"end": 1, "text": (0, 1)}])
def test_a_step_has_one_position(position):
    with pytest.raises(ValueError, match="one of them"):
        Step(reward=1, **position)


@step_rewards(at="lines")
def lengths(steps, completions, factor, **columns):
    assert len(completions) == len(steps)
    return [[factor * len(step) for step in own] for own in steps]


@step_rewards(at="lines")
async def lengths_later(steps, completions, factor, **columns):
    await asyncio.sleep(0)
    return [[factor * len(step) for step in own] for own in steps]


SCORED = [
    [Step(text=(0, 3), reward=4), Step(text=(3, 6), reward=6)],
    [Step(text=(0, 1), reward=2)],
]


def test_a_function_of_steps_becomes_a_reward_function():
    completions = ["ab\ncde", [{"role": "assistant", "content": "x"}]]
    assert lengths(completions=completions, factor=2) == SCORED
    assert asyncio.run(lengths_later(completions=completions, factor=2)) == SCORED
    assert asyncio.iscoroutinefunction(lengths_later)
    assert lengths.__name__ == "lengths"


async def awaited(score, **columns):
    found = score(**columns)
    return await found if asyncio.iscoroutine(found) else found


@pytest.mark.parametrize("score", [lengths, lengths_later])
def test_a_column_named_as_the_steps_is_an_error_that_says_what_to_rename(score):
    text = (
        f"the data set has a column 'steps', and {score.__name__} is given the steps of its responses under that name "
        "by @step_rewards. Rename the column, for example with dataset.rename_column('steps', 'known_steps')."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        asyncio.run(awaited(score, completions=["a\nb"], steps=[3], factor=1))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([[1.0], [1.0]], "given, response 0: 1 rewards for 2 steps; allowed: one per step."),
        ([[1.0, 2.0, 3.0], [1.0]], "given, response 0: 3 rewards for 2 steps"),
        ([[1.0, 2.0]], "given returned 1 lists for 2 responses; allowed: one per response."),
    ],
)
def test_a_wrong_number_of_step_rewards_is_named(found, text):
    def given(steps, completions):
        return found

    with pytest.raises(ValueError, match=text):
        step_rewards("lines")(given)(completions=["a\nb", "c"])


def test_a_response_that_is_not_scored():
    def given(steps, completions):
        return [None, [1.0]]

    assert step_rewards("lines")(given)(completions=["a\nb", "c"]) == [None, [Step(text=(0, 1), reward=1.0)]]


def test_a_completion_of_several_messages_is_refused():
    turns = [{"role": "assistant", "content": "a"}, {"role": "tool", "content": "b"}]
    with pytest.raises(ValueError, match=r"a completion of 2 messages is not one text; give each step's last token"):
        completion_text(turns)
