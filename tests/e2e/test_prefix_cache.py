"""The prefix cache over HTTP: answers are those of a server without it, bit by bit."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from conftest import serving

PAGE = 64


@pytest.fixture(scope="module")
def cached():
    with serving("--prefill-chunk", "256") as server:
        yield server


@pytest.fixture(scope="module")
def plain():
    with serving("--prefill-chunk", "256", "--no-enable-prefix-caching") as server:
        yield server


def tokens(count, seed):
    chosen = random.Random(seed)
    return [chosen.randrange(4000) for _ in range(count)]


def complete(server, prompt, **options):
    body = {"prompt": prompt, "max_tokens": 4, "logprobs": 3, "seed": 7, "ignore_eos": True} | options
    answer = requests.post(f"{server.url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def found(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def said(answer):
    return [(c["text"], c["logprobs"], c["finish_reason"]) for c in answer["choices"]]


def test_a_hit_gives_what_a_server_without_a_cache_gives(cached, plain):
    beginning = tokens(700, 1)
    assert found(complete(cached, beginning)) == 0
    hits = 0
    for shared in [*range(PAGE, 700, PAGE), 1, 63, 65, 300, 511, 513]:
        for own in (1, 50):
            prompt = beginning[:shared] + tokens(own, shared * 100 + own)
            with_cache, without = complete(cached, prompt), complete(plain, prompt)
            assert said(with_cache) == said(without), (shared, own)
            assert found(without) == 0
            assert found(with_cache) <= shared and found(with_cache) % PAGE == 0
            hits += found(with_cache)
    assert hits > 3000


def test_requests_that_come_together_share_the_computation(cached, plain):
    beginning = tokens(512, 2)
    prompts = [beginning + tokens(30, 1000 + i) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda prompt: complete(cached, prompt), prompts))
    assert sorted(map(found, answers)) == [0] + 7 * [512]
    assert [said(answer) for answer in answers] == [said(complete(plain, prompt)) for prompt in prompts]


@pytest.mark.parametrize("kind", ["completions", "chat/completions"])
def test_choices_share_their_prompt_and_nothing_else(cached, plain, kind):
    text = "Tell me of " + ", ".join(f"the number {i}" for i in range(40))
    body = {"n": 4, "seed": 5, "max_tokens": 12, "temperature": 1}
    body |= {"prompt": text} if kind == "completions" else {"messages": [{"role": "user", "content": text}]}

    def choices(server, **options):
        answer = requests.post(f"{server.url}/v1/{kind}", json=body | options, timeout=120).json()
        assert sorted(c["index"] for c in answer["choices"]) == list(range(len(answer["choices"])))
        return [{k: c[k] for k in ("text", "message", "finish_reason") if k in c} for c in answer["choices"]]

    before = [cached.metric(f"vllm:prefix_cache_{name}_total") for name in ("queries", "hits")]
    with_cache = choices(cached)
    queries, hits = (cached.metric(f"vllm:prefix_cache_{name}_total") - was
                     for name, was in zip(("queries", "hits"), before))
    assert with_cache == choices(plain)
    assert len({str(choice) for choice in with_cache}) > 1
    prompt = queries / 4
    assert hits == 3 * ((prompt - 1) // PAGE * PAGE) > 0
    assert choices(cached, n=1) == with_cache[:1]


def test_choices_of_a_stream(cached):
    text = "Tell me of " + ", ".join(f"the number {i}" for i in range(40))
    asked = {"model": "tiny-r1", "prompt": text, "n": 3, "seed": 5, "max_tokens": 12, "temperature": 1}
    whole = cached.client().completions.create(**asked)
    texts, finished = ["", "", ""], set()
    for chunk in cached.client().completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            finished |= {choice.index} if choice.finish_reason else set()
    assert texts == [choice.text for choice in whole.choices] and finished == {0, 1, 2}


def test_metrics_say_where_prompts_came_from():
    with serving("--prefill-chunk", "256") as server:
        prompt = tokens(200, 9)
        for expected in (0, 192):
            assert found(complete(server, prompt)) == expected
        source = "vllm:prompt_tokens_by_source_total"
        assert server.metric(source, source="local_compute") == 208
        assert server.metric(source, source="local_cache_hit") == 192
        assert server.metric("vllm:prompt_tokens_cached_total") == 192
        assert server.metric("vllm:prompt_tokens_total") == 400
        assert server.metric("vllm:request_prefill_kv_computed_tokens_sum") == 208
        assert server.metric("vllm:engine_sleep_state", sleep_state="awake") == 1


def test_a_salt_separates(cached):
    prompt = tokens(200, 3)
    assert found(complete(cached, prompt, cache_salt="mine")) == 0
    assert found(complete(cached, prompt, cache_salt="yours")) == 0
    assert found(complete(cached, prompt)) == 0
    assert found(complete(cached, prompt, cache_salt="mine")) == 192


def test_a_scored_prompt_takes_no_hit(cached):
    prompt = tokens(200, 4)
    scored = complete(cached, prompt, echo=True)
    assert found(complete(cached, prompt, echo=True)) == 0
    assert said(complete(cached, prompt, echo=True)) == said(scored)
    assert found(complete(cached, prompt)) == 192


@pytest.mark.parametrize(
    "kind, fields",
    [
        ("completions", {"echo": True, "logprobs": 3}),
        ("completions", {"prompt_logprobs": 4, "echo": True, "logprobs": 2}),
        ("completions", {"prompt_logprobs": 2}),
        ("chat/completions", {"prompt_logprobs": 2}),
        ("chat/completions", {"prompt_logprobs": 2, "logprobs": True, "top_logprobs": 3}),
    ],
)
def test_choices_that_score_their_prompt_compute_it_once(cached, plain, kind, fields):
    words = " ".join(str(token) for token in tokens(40, str((kind, fields))))
    body = {"seed": 5, "max_tokens": 6, "temperature": 1, "ignore_eos": True} | fields
    body |= {"prompt": words} if kind == "completions" else {"messages": [{"role": "user", "content": words}]}

    def ask(server, n, **options):
        """Without what differs from answer to answer; and how many tokens of prompts it computed."""
        requests.post(f"{server.url}/reset_prefix_cache", timeout=10)
        before = server.metric("vllm:request_prefill_kv_computed_tokens_sum")
        answer = requests.post(f"{server.url}/v1/{kind}", json=body | options | {"n": n}, timeout=120).json()
        assert [choice.pop("index") for choice in answer["choices"]] == list(range(n))
        answer = {key: answer[key] for key in ("choices", "usage", "prompt_logprobs") if key in answer}
        return answer, server.metric("vllm:request_prefill_kv_computed_tokens_sum") - before

    (three, computed), (each, n_fold) = ask(cached, 3), ask(plain, 3)
    assert three == each and len({str(choice) for choice in three["choices"]}) > 1
    size = three["usage"]["prompt_tokens"]
    assert size > 2 * PAGE and n_fold == 3 * size
    assert computed == size + 2 * (size - (size - 1) // PAGE * PAGE)
    one = ask(cached, 1)[0]
    assert one["choices"][0] == three["choices"][0]
    assert one.get("prompt_logprobs") == three.get("prompt_logprobs")
    greedy = ask(cached, 3, temperature=0)[0]["choices"]
    assert greedy == [ask(cached, 1, temperature=0)[0]["choices"][0] for _ in range(3)]


def test_choices_of_a_stream_score_their_prompt_each(cached):
    asked = {"model": "tiny-r1", "prompt": tokens(200, 8), "n": 3, "seed": 5, "max_tokens": 4, "temperature": 1}
    asked |= {"echo": True, "logprobs": 2}
    whole = cached.client().completions.create(**asked)
    before = cached.metric("vllm:request_prefill_kv_computed_tokens_sum")
    texts, logprobs = ["", "", ""], [[], [], []]
    for chunk in cached.client().completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            logprobs[choice.index] += choice.logprobs.top_logprobs if choice.logprobs else []
    assert texts == [choice.text for choice in whole.choices]
    assert logprobs == [choice.logprobs.top_logprobs for choice in whole.choices]
    assert cached.metric("vllm:request_prefill_kv_computed_tokens_sum") - before == 600


def test_choices_that_score_a_prompt_whose_beginning_is_known_compute_it_twice_at_most(cached):
    prompt = tokens(500, 10)
    complete(cached, prompt[:260])
    assert found(complete(cached, prompt[:300])) == 256
    before = cached.metric("vllm:request_prefill_kv_computed_tokens_sum")
    complete(cached, prompt, echo=True, n=4)
    assert 500 < cached.metric("vllm:request_prefill_kv_computed_tokens_sum") - before <= 2 * 500


def test_a_reset_forgets(cached):
    prompt = tokens(200, 5)
    complete(cached, prompt)
    assert found(complete(cached, prompt)) == 192
    assert requests.post(f"{cached.url}/reset_prefix_cache", timeout=10).status_code == 200
    assert found(complete(cached, prompt)) == 0
    assert found(complete(cached, prompt)) == 192


def test_pages_that_nobody_uses_are_free(cached):
    complete(cached, tokens(200, 6))
    assert cached.metric("vllm:kv_cache_usage_perc") == 0


def test_decoded_pages_are_found_if_that_is_asked_for(cached):
    with serving("--prefill-chunk", "256", "--prefix-cache-reuse-decoded") as reusing:
        prompt = tokens(100, 77)
        # Without it the longer prompt takes another form, from its first page on.
        for server, expected in ((cached, 0), (reusing, 3 * PAGE)):
            said = complete(server, prompt, max_tokens=120, return_token_ids=True)["choices"][0]["token_ids"]
            assert len(said) == 120
            answer = complete(server, prompt + said + tokens(20, 78))
            assert found(answer) == expected
            assert answer["choices"][0]["logprobs"]["token_logprobs"][0] < 0
