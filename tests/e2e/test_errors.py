"""Errors as the openai client sees them."""

import socket

import openai
import pytest
import requests

from conftest import eventually, serving

MODEL = "tiny-r1"
MESSAGES = [{"role": "user", "content": "What is 2 + 2?"}]


def refused(client, **options):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**({"model": MODEL, "messages": MESSAGES} | options))
    assert caught.value.type == "invalid_request_error"
    return caught.value


@pytest.mark.parametrize(
    "param, options",
    [
        ("temperature", {"temperature": -1}),
        ("top_p", {"top_p": 0}),
        ("n", {"n": 0}),
        ("max_tokens", {"max_tokens": 0}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
        ("logit_bias", {"logit_bias": {"999999": 1}}),
        ("response_format.type", {"response_format": {"type": "xml"}}),
        ("tool_choice", {"tools": [{"type": "function", "function": {"name": "f"}}],
                         "tool_choice": "always"}),
        ("tools[0].function.parameters.type", {"tools": [{"type": "function", "function": {
            "name": "f", "parameters": {"type": "array"}}}]}),
        ("metadata.a", {"metadata": {"a": 1}}),
        ("response_format.json_schema.name", {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}),
        ("lora_path", {"extra_body": {"lora_path": "x"}}),
        ("messages", {"messages": []}),
        ("messages[0].content", {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:,"}}]}]}),
        ("messages[0].role", {"messages": [{"role": "robot", "content": "x"}]}),
    ],
)  # fmt: skip
def test_the_parameter_is_named(client, param, options):
    assert refused(client, **options).param == param


def test_unknown_fields_do_no_harm(client):
    response = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        temperature=0,
        user="me",
        store=False,
        response_format={"type": "text"},
        extra_body={"no_such_field": 1, "best_of": 1},
    )
    assert response.choices[0].message.content == "4"


def test_an_overlong_prompt_names_the_numbers(client):
    error = refused(client, messages=[{"role": "user", "content": "word " * 5000}])
    assert error.code == "context_length_exceeded"
    assert "maximum context length is 4096 tokens" in str(error)
    assert "has 50" in str(error) and "asks for" not in str(error)
    error = refused(client, max_tokens=4097)
    assert error.code == "context_length_exceeded" and "asks for 4097" in str(error)


def test_a_cap_above_the_room_left_is_cut_to_it(client):
    options = {"model": MODEL, "messages": MESSAGES, "temperature": 0}
    capped = client.chat.completions.create(max_tokens=4096, **options)
    assert capped.choices == client.chat.completions.create(**options).choices


def test_another_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-5", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")
    assert client.models.retrieve(MODEL).id == MODEL


def test_paths_methods_types_and_bodies(server):
    chat = f"{server.url}/v1/chat/completions"
    json_type = {"Content-Type": "application/json"}
    deep = '{"messages": ' + "[" * 100_000
    for response, status in [
        (requests.get(f"{server.url}/v2/models", timeout=10), 404),
        (requests.get(chat, timeout=10), 405),
        (requests.post(chat, data="{}", headers={"Content-Type": "text/plain"}, timeout=10), 415),
        (requests.post(chat, data="{}", timeout=10), 400),  # no type is meant to be JSON
        (requests.post(chat, data="{", headers=json_type, timeout=10), 400),
        (requests.post(chat, data=deep, headers=json_type, timeout=10), 400),
        (requests.post(chat, data=" " * (33 << 20), headers=json_type, timeout=60), 413),
    ]:
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_the_key_is_asked_for():
    with serving("--api-key", "secret", "--served-model-name", "a", "b") as server:
        with pytest.raises(openai.AuthenticationError):
            server.client().models.list()
        client = server.client(api_key="secret")
        assert [m.id for m in client.models.list()] == ["a", "b"]
        response = client.chat.completions.create(model="b", messages=MESSAGES, max_tokens=2)
        assert response.model == "b"
        assert requests.get(f"{server.url}/health", timeout=10).status_code == 200


def test_a_full_queue_says_when_to_come_back():
    with serving("--max-queue", "1", "--max-num-seqs", "1") as server:
        client = server.client()

        def stream():
            return client.chat.completions.create(
                model=MODEL, messages=MESSAGES, stream=True, extra_body={"ignore_eos": True}
            )

        streams = [stream()]
        assert eventually(lambda: server.metric("vllm:num_requests_running") == 1)
        streams.append(stream())
        assert eventually(lambda: server.metric("vllm:num_requests_waiting") == 1)
        with pytest.raises(openai.RateLimitError) as caught:
            stream()
        assert caught.value.response.headers["Retry-After"] == "1"
        for running in streams:
            running.close()
        assert eventually(lambda: server.metric("vllm:num_requests_running") == 0)
        response = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
        assert response.choices[0].message.content == "4"


def test_as_many_choices_as_can_wait():
    with serving("--max-num-seqs", "2", "--max-queue", "3") as server:
        client = server.client()
        options = {"model": MODEL, "messages": MESSAGES, "max_tokens": 2}
        assert len(client.chat.completions.create(n=5, **options).choices) == 5
        assert "--max-num-seqs and --max-queue" in str(refused(client, n=6))


def test_rubbish_does_not_disturb_the_server(server, client):
    port = int(server.url.rsplit(":", 1)[1])
    for rubbish in (b"\x16\x03\x01", b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"\0" * 100_000):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(rubbish)
    assert [m.id for m in client.models.list()] == [MODEL]
