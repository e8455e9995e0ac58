"""Fields of vLLM, DeepSeek and SGLang beside OpenAI's, and what starts a server with other defaults."""

import json
import shutil
import threading

import openai
import pytest
import requests
from conftest import MODEL as MODEL_FOLDER
from conftest import eventually, serving

MODEL = "tiny-r1"
SAID = [{"role": "user", "content": "What is 2 + 2?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Current time in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def ask(client, messages=SAID, **extra):
    return client.chat.completions.create(model=MODEL, temperature=0, messages=messages, extra_body=extra)


def detokenized(server, tokens):
    return requests.post(f"{server.url}/detokenize", json={"tokens": tokens}, timeout=10).json()["prompt"]


def test_hidden_reasoning_hides_its_logprobs_too(client):
    shown = ask(client, logprobs=True)
    hidden = ask(client, logprobs=True, include_reasoning=False)
    assert hidden.choices[0].message.reasoning is None
    said = "".join(entry.token for entry in hidden.choices[0].logprobs.content)
    assert said == f"{shown.choices[0].message.content}<｜end▁of▁sentence｜>"
    assert len(hidden.choices[0].logprobs.content) < len(shown.choices[0].logprobs.content)
    reasoning = shown.usage.completion_tokens_details.reasoning_tokens
    assert reasoning == shown.usage.completion_tokens - len(hidden.choices[0].logprobs.content)
    streamed = [
        entry.token
        for chunk in client.chat.completions.create(
            model=MODEL, temperature=0, messages=SAID, logprobs=True, stream=True, extra_body={"include_reasoning": False})
        for choice in chunk.choices if choice.logprobs
        for entry in choice.logprobs.content
    ]  # fmt: skip
    assert "".join(streamed) == said


def tokens_of(server, text):
    asked = {"prompt": text, "add_special_tokens": False}
    return requests.post(f"{server.url}/tokenize", json=asked, timeout=10).json()["tokens"]


def test_no_tokens_but_the_allowed(server, client):
    allowed = tokens_of(server, "yes no")
    options = {"model": MODEL, "prompt": "It is", "max_tokens": 20, "temperature": 1, "seed": 1}
    extra = {"allowed_token_ids": allowed, "return_token_ids": True}
    choice = client.completions.create(extra_body=extra, **options).choices[0]
    assert set(choice.token_ids) <= set(allowed) and choice.finish_reason == "length"
    ends = {"allowed_token_ids": allowed[:1], "stop_token_ids": allowed[:1]}
    assert client.completions.create(extra_body=ends, **options).choices[0].finish_reason == "stop"
    thinks = ask(client, allowed_token_ids=allowed, return_token_ids=True, max_tokens=9).choices[0]
    assert set(thinks.token_ids) <= set(allowed) and len(thinks.token_ids) == 9


def test_bad_words_are_not_said(client):
    free = ask(client).choices[0].message.reasoning
    words = [word for word in free.split() if word.isalpha()][:3]
    assert words
    held = ask(client, bad_words=words).choices[0].message
    said = (held.reasoning or held.content).split()
    assert said and not set(words) & set(said) and held.reasoning != free


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"bad_words": "x"}, "bad_words"),
        ({"bad_words": [""]}, "bad_words"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [10**9]}, "allowed_token_ids"),
        ({"allowed_token_ids": [5], "min_tokens": 2}, "min_tokens"),
        ({"bad_words": ["x"], "ignore_eos": True}, "ignore_eos"),
        ({"bad_words": ["x"], "guided_regex": "a"}, "bad_words"),
        ({"bad_words": ["x"], "tools": [TOOL], "tool_choice": "required"}, "bad_words"),
    ],
)
def test_token_rules_that_cannot_be(client, fields, named):
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, **fields)
    assert error.value.param == named


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids(server, client, stream):
    ids, prompt, text = [], [], ""
    answer = client.chat.completions.create(
        model=MODEL, temperature=0, messages=SAID, stream=stream, extra_body={"return_token_ids": True, "thinking": {"type": "disabled"}}
    )
    for part in answer if stream else [answer]:
        prompt += getattr(part, "prompt_token_ids", None) or []
        ids += part.choices[0].token_ids
        text += (part.choices[0].delta if stream else part.choices[0].message).content or ""
    assert detokenized(server, ids) == f"{text}<｜end▁of▁sentence｜>"
    assert detokenized(server, prompt).endswith("What is 2 + 2?<｜Assistant｜></think>")
    named = ask(client, logprobs=True, return_tokens_as_token_ids=True, return_token_ids=True).choices[0]
    assert [entry.token for entry in named.logprobs.content] == [f"token_id:{i}" for i in named.token_ids]


def test_prompt_logprobs(client):
    whole = ask(client, prompt_logprobs=2, return_token_ids=True, max_tokens=1)
    first, *rest = whole.prompt_logprobs
    assert first is None and len(rest) == len(whole.prompt_token_ids) - 1
    for token, entries in zip(whole.prompt_token_ids[1:], rest, strict=True):
        assert str(token) in entries and 2 <= len(entries) <= 3
        assert sorted(e["rank"] for e in entries.values() if e["rank"]) == [1, 2]
    scored = client.completions.create(
        model=MODEL, prompt=whole.prompt_token_ids, max_tokens=0, echo=True, logprobs=0, extra_body={"prompt_logprobs": 0})  # fmt: skip
    echoed = scored.choices[0].logprobs.token_logprobs[1:]
    assert echoed == pytest.approx([rest[i][str(t)]["logprob"] for i, t in enumerate(whole.prompt_token_ids[1:])])
    assert [len(entries) for entries in scored.choices[0].prompt_logprobs[1:]] == [1] * len(rest)


def test_a_prompt_is_cut_at_its_beginning_or_end(client):
    def ids(**extra):
        completion = client.completions.create(
            model=MODEL, prompt=list(range(100, 120)), max_tokens=1, extra_body={"return_token_ids": True} | extra)  # fmt: skip
        return completion.choices[0].prompt_token_ids

    assert ids(truncate_prompt_tokens=5) == list(range(115, 120))
    assert ids(truncate_prompt_tokens=5, truncation_side="right") == list(range(100, 105))
    assert ids(truncate_prompt_tokens=-1) == list(range(100, 120))


@pytest.mark.parametrize("deepseek", [False, True])
def test_the_last_message_goes_on(client, deepseek):
    question = {"role": "user", "content": "Umar is 40 years old, works as a lawyer and lives in Hanoi. Answer in JSON."}
    whole = ask(client, [question], thinking={"type": "disabled"}).choices[0].message.content
    begun = whole[: whole.index(",") + 1]
    if deepseek:
        rest = ask(client, [question, {"role": "assistant", "content": begun, "prefix": True}])
    else:
        last = {"role": "assistant", "content": begun}
        extra = {"continue_final_message": True, "add_generation_prompt": False}
        rest = ask(client, [question, last], **extra)
        echoed = ask(client, [question, last], echo=True, **extra).choices[0].message.content
        assert echoed == whole
    assert begun + rest.choices[0].message.content == whole


def test_every_token_of_a_completion_is_in_an_event(client):
    stream = client.completions.create(
        model=MODEL, prompt="What is", max_tokens=20, stream=True, extra_body={"return_token_ids": True, "ignore_eos": True})  # fmt: skip
    counts = [len(chunk.choices[0].token_ids) for chunk in stream]
    assert sum(counts) == 20 and all(1 <= count <= 4 for count in counts)  # with the drafts that stood


def test_a_service_tier_is_repeated(client):
    assert ask(client).service_tier is None
    assert ask(client, service_tier="auto").service_tier == "default"
    assert ask(client).system_fingerprint.startswith("fathom-")


# In the form of V3 and R1; tiny-r1 knows another, and writes what it has learnt.
V3 = """{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}
{%- elif m['role'] == 'assistant' %}{{ '<｜Assistant｜>' + (m['content'] or '') }}{% for c in m['tool_calls'] or [] %}
{{- '<｜tool▁call▁begin｜>' + c['type'] + '<｜tool▁sep｜>' + c['function']['name'] }}{% endfor %}{% endif %}{% endfor %}
{{- '<｜Assistant｜></think>' }}"""


def test_a_template_that_never_reads_tools_is_said(tmp_path):
    template = tmp_path / "deaf.jinja"
    template.write_text(V3)
    with serving("--chat-template", template, "--default-chat-template-kwargs", '{"thinking": false}') as server:
        client = server.client()
        assert ask(client).choices[0].message.content == "4"
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, tools=[TOOL])
        assert caught.value.param == "tools" and "--chat-template" in str(caught.value)
    with serving("--chat-template", template, "--reasoning-parser", "none") as server:
        assert not requests.get(f"{server.url}/server_info", timeout=10).json()["reads_tools"]


def test_defaults_of_a_server():
    with serving(
        "--default-chat-template-kwargs", '{"thinking": false}', "--override-generation-config", '{"temperature": 0}',
        "--api-key", "one", "two", "--max-logprobs", "3",
    ) as server:  # fmt: skip
        for key in ("one", "two"):
            client = server.client(api_key=key)
            answers = {
                client.chat.completions.create(model=MODEL, messages=SAID).choices[0].message.model_dump_json()
                for _ in range(3)
            }
            assert len(answers) == 1 and '"reasoning":null' in answers.pop()
        thinking = client.chat.completions.create(model=MODEL, messages=SAID, extra_body={"enable_thinking": True})
        assert thinking.choices[0].message.reasoning
        with pytest.raises(openai.AuthenticationError):
            server.client(api_key="three").models.list()
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model=MODEL, messages=SAID, logprobs=True, top_logprobs=4)


def test_an_answer_is_no_longer_than_the_operator_says():
    with serving("--override-generation-config", '{"max_new_tokens": 5}') as server:
        client = server.client()
        for asked in ({}, {"max_tokens": 40}, {"max_tokens": 40, "min_tokens": 30}):
            answer = ask(client, **asked)
            assert answer.usage.completion_tokens == 5 and answer.choices[0].finish_reason == "length"
        completion = client.completions.create(model=MODEL, prompt="One, two,", temperature=0)
        assert completion.usage.completion_tokens <= 5
        info = requests.get(f"{server.url}/server_info", timeout=10).json()
        assert info["max_output_tokens"] == info["default_sampling_params"]["max_tokens"] == 5


def test_a_models_own_length_is_a_default_alone(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(MODEL_FOLDER, model)
    config = model / "generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_new_tokens": 5}))
    with serving("--served-model-name", MODEL, model=model) as server:
        client = server.client()
        assert client.chat.completions.create(model=MODEL, messages=SAID).usage.completion_tokens == 5
        longer = client.chat.completions.create(
            model=MODEL, messages=SAID, max_tokens=8, extra_body={"ignore_eos": True}
        )
        assert longer.usage.completion_tokens == 8


def test_reasoning_may_stay_in_the_content():
    with serving("--reasoning-parser", "none") as server:
        message = ask(server.client()).choices[0].message
        assert message.reasoning is None and "</think>4" in message.content


def test_paths_are_taken_as_they_are_meant(server):
    chat = {"model": MODEL, "messages": SAID, "max_tokens": 1}
    for path in ("/v1/chat/completions/", "/chat/completions"):
        assert requests.post(server.url + path, json=chat, timeout=30).status_code == 200
    for path, said in (("/v1/embeddings", "no embeddings"), ("/v1/audio/speech", "no audio"), ("/nowhere", "There is no /nowhere"),
                       ("/generate", "/v1/completions continues a prompt"), ("/abort_request", "its connection is closed"),
                       ("/docs", "/openapi.json describes")):
        answer = requests.post(server.url + path, json={}, timeout=10)
        assert answer.status_code == 404 and said in answer.json()["error"]["message"]
    assert requests.post(f"{server.url}/ping", timeout=10).status_code == 200
    assert server.metric("http_requests_total", status="2xx") > 0


def test_a_prompt_is_tokenised_by_itself(server):
    answer = requests.post(f"{server.url}/tokenize", json={"prompt": ["a", "b"]}, timeout=10)
    assert answer.status_code == 400 and "a request for each prompt" in answer.json()["error"]["message"]


def test_some_tools_are_allowed(client):
    other = {"type": "function", "function": TOOL["function"] | {"name": "get_weather"}}
    for name in ("get_time", "get_weather"):
        only = {"mode": "required", "tools": [{"type": "function", "function": {"name": name}}]}
        message = client.chat.completions.create(
            model=MODEL, temperature=0, messages=SAID, tools=[TOOL, other],
            tool_choice={"type": "allowed_tools", "allowed_tools": only}).choices[0].message  # fmt: skip
        assert {call.function.name for call in message.tool_calls} == {name}


def test_a_lower_priority_number_comes_before(server):
    """Where the server has that policy; else any client could pass the others."""
    completion = {"model": MODEL, "prompt": "What is", "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.BadRequestError, match="--scheduling-policy priority"):
        server.client().completions.create(**completion | {"extra_body": {"priority": 1}})
    with serving("--scheduling-policy", "priority", "--max-num-seqs", "1") as one_at_a_time:
        ended = []

        def run(name, priority, tokens):
            body = completion | {"max_tokens": tokens, "extra_body": {"ignore_eos": True, "priority": priority}}
            one_at_a_time.client().completions.create(**body)
            ended.append(name)

        threads = [threading.Thread(target=run, args=("first", 0, 1500))]
        threads[0].start()
        assert eventually(lambda: one_at_a_time.metric("vllm:num_requests_running") == 1)
        for waiting, (name, priority) in enumerate([("later", 5), ("usual", 0), ("urgent", -3)], 1):
            threads.append(threading.Thread(target=run, args=(name, priority, 200)))  # longer than clients take to say so
            threads[-1].start()
            assert eventually(lambda: one_at_a_time.metric("vllm:num_requests_waiting") == waiting)
        for thread in threads:
            thread.join(60)
        assert ended == ["first", "urgent", "usual", "later"]
