"""vLLM's logprob_token_ids: log-probabilities of named tokens instead of the likeliest, with the bits that they have among those."""

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

MODEL = "tiny-r1"
SAID = [{"role": "user", "content": "What is 12 * 34?"}]
PROMPT = "Once upon a time there was"
COLD, HOT = {"temperature": 0, "max_tokens": 25}, {"temperature": 1.5, "seed": 7, "max_tokens": 25, "presence_penalty": 1.5, "logit_bias": {"20": 3}}


def number(name):
    return int(name.removeprefix("token_id:"))


def chat(client, stream=False, **options):
    """What each position shows: the id of its token, its log-probability, and the list of those beside it."""
    extra = {key: options.pop(key) for key in ("logprob_token_ids",) if key in options}
    answer = client.chat.completions.create(
        model=MODEL, messages=SAID, logprobs=True, stream=stream, extra_body={"return_tokens_as_token_ids": True} | extra, **options
    )
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    return [(number(e.token), e.logprob, [(number(t.token), t.logprob) for t in e.top_logprobs]) for e in entries]


def complete(client, **options):
    extra = {key: options.pop(key) for key in ("logprob_token_ids", "prompt_logprobs") if key in options}
    extra["return_tokens_as_token_ids"] = True
    found = client.completions.create(model=MODEL, prompt=PROMPT, extra_body=extra, **options).choices[0].logprobs
    tops = [top and {number(name): logprob for name, logprob in top.items()} for top in found.top_logprobs]
    return list(zip(map(number, found.tokens), found.token_logprobs, tops))


@pytest.mark.parametrize("options", [COLD, HOT], ids=["greedy", "drawn"])
def test_a_chat_shows_the_token_and_the_named_ones_in_their_order(client, options):
    likeliest = chat(client, top_logprobs=20, **options)
    ids = [token for token, _ in reversed(likeliest[0][2])]
    named = chat(client, logprob_token_ids=[*ids, *ids[:2]], **options)
    seen = 0
    for (token, logprob, top), (same, same_logprob, shown) in zip(likeliest, named, strict=True):
        assert (same, same_logprob) == (token, logprob)
        assert [i for i, _ in shown] == [token, *(i for i in ids if i != token)]
        assert shown[0] == (token, logprob)
        both = dict(top).keys() & dict(shown).keys()
        assert {i: dict(shown)[i] for i in both} == {i: dict(top)[i] for i in both}
        seen += len(both)
    assert seen > 20  # those of other positions too
    assert [dict(shown) for _, _, shown in named][0] == dict(likeliest[0][2]) | {likeliest[0][0]: likeliest[0][1]}
    assert chat(client, stream=True, logprob_token_ids=ids, **options) == named
    assert chat(client, top_logprobs=3, logprob_token_ids=ids, **options) == named  # as in vLLM


def test_a_token_far_from_the_likeliest(client):
    """What is left of certainty, held against the draw of that very token."""
    rare = 4000
    [(_, _, shown)] = chat(client, logprob_token_ids=[rare], temperature=0, max_tokens=1)
    [(drawn, logprob, _)] = chat(client, logit_bias={str(rare): 100}, temperature=0, max_tokens=1)
    assert drawn == rare and shown[1] == (rare, logprob)
    likeliest = chat(client, top_logprobs=20, temperature=0, max_tokens=1)
    assert logprob < min(p for _, p in likeliest[0][2])


def test_a_completion_shows_them_beside_the_token(client):
    likeliest = complete(client, logprobs=20, **HOT)
    ids = list(likeliest[0][2])[:19]
    named = complete(client, logprobs=0, logprob_token_ids=ids, **HOT)
    for (token, logprob, top), (same, same_logprob, shown) in zip(likeliest, named, strict=True):
        assert (same, same_logprob) == (token, logprob) and shown[token] == logprob
        assert set(shown) == {token, *ids}
        assert all(shown[i] == top[i] for i in shown.keys() & top.keys())
    assert complete(client, logprobs=5, logprob_token_ids=ids, **HOT) == named
    # The prompt's own positions have their likeliest, as many as logprobs says.
    echoed = complete(client, logprobs=2, logprob_token_ids=ids, echo=True, **HOT)
    assert echoed[-len(named):] == named
    assert echoed[: -len(named)] == complete(client, logprobs=2, echo=True, **HOT)[: -len(named)]


def test_who_names_none_has_the_same_bits_beside_those_who_do(client):
    plain = [COLD | {"top_logprobs": 3}, HOT | {"top_logprobs": 20}, HOT | {"seed": 8}]
    naming = [options | {"logprob_token_ids": ids} for options in (COLD, HOT) for ids in ([5], list(range(128)), [4000, 1])]
    alone = [chat(client, **options) for options in plain + naming]
    assert len(alone[-2][0][2]) in (128, 129)
    with ThreadPoolExecutor(9) as pool:
        assert list(pool.map(lambda options: chat(client, **options), plain + naming)) == alone


@pytest.mark.parametrize(
    "fields",
    [
        {"logprob_token_ids": [5]},
        {"logprobs": True, "logprob_token_ids": []},
        {"logprobs": True, "logprob_token_ids": 5},
        {"logprobs": True, "logprob_token_ids": [5, -1]},
        {"logprobs": True, "logprob_token_ids": [10**6]},
        {"logprobs": True, "logprob_token_ids": ["5"]},
        {"logprobs": True, "logprob_token_ids": [5] * 129},
    ],
)
def test_what_cannot_be_is_refused_by_name(client, fields):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=SAID, extra_body=fields)
    assert error.value.param == "logprob_token_ids"


def test_an_echo_alone_generates_nothing_to_show(client):
    with pytest.raises(openai.BadRequestError, match="max_tokens must not be 0") as error:
        complete(client, logprobs=0, logprob_token_ids=[5], echo=True, max_tokens=0)
    assert error.value.param == "logprob_token_ids"
    with pytest.raises(openai.BadRequestError, match="only allowed with logprobs"):
        client.completions.create(model=MODEL, prompt=PROMPT, extra_body={"logprob_token_ids": [5]})
