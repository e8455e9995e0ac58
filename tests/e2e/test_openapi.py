"""The server's description of itself, held against what it answers."""

import json
import re
import subprocess

import pytest
import requests
from conftest import BINARY, MODEL, serving

CHAT = {"messages": [{"role": "user", "content": "What is 2 + 2?"}], "temperature": 0}
TEXT = {"prompt": "What is", "max_tokens": 3}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ASKED = {
    "/v1/chat/completions": [
        CHAT,
        CHAT | {"logprobs": True, "top_logprobs": 2, "n": 2, "seed": 5, "temperature": 1},
        CHAT | {"max_tokens": 2, "tools": [TOOL], "stop": ["x"], "include_reasoning": False},
        CHAT | {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "logprob_token_ids": [5, 7]},
    ],
    "/v1/completions": [
        TEXT,
        TEXT | {"logprobs": 2, "echo": True, "n": 2, "prompt": ["a", "b"]},
        TEXT | {"prompt": [[1, 2], [3]], "stream": True, "logit_bias": {"5": -100}},
    ],
    "/tokenize": [{"prompt": "a b", "return_token_strs": True}, {"messages": CHAT["messages"]}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
    "/v1/messages": [
        CHAT | {"max_tokens": 60},
        CHAT | {"max_tokens": 60, "thinking": {"type": "enabled"}, "stream": True},
    ],
    "/v1/messages/count_tokens": [{"messages": CHAT["messages"]}],
    "/v1/responses": [
        {"input": "What is 2 + 2?", "max_output_tokens": 60},
        {"input": "What is 2 + 2?", "temperature": 0, "stream": True},
    ],
}
REFUSAL = {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in ("Error", "MessagesError")]}
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


class Description:
    def __init__(self, document):
        self.document = document

    def resolved(self, schema):
        while "$ref" in schema:
            found = self.document
            for part in schema["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            schema = found
        return schema

    def faults(self, schema, value, at="", closed=True):
        """What of `value` is not as `schema` says; with `closed`, members that it does not name too."""
        schema = self.resolved(schema)
        if "anyOf" in schema:
            each = [self.faults(one, value, at, closed) for one in schema["anyOf"]]
            return [] if [] in each else [f"{at}: none of anyOf: {each}"]
        if "allOf" in schema:
            return [f for one in schema["allOf"] for f in self.faults(one, value, at, closed=False)]
        if "enum" in schema:
            return [] if value in schema["enum"] else [f"{at}: {value!r} is none of {schema['enum']}"]
        if "type" not in schema:
            return []
        kind = schema["type"]
        if kind in ("number", "integer"):
            numbers = (int,) if kind == "integer" else (int, float)
            if not isinstance(value, numbers) or isinstance(value, bool):
                return [f"{at}: {value!r} is no {kind}"]
            inside = schema.get("minimum", value) <= value <= schema.get("maximum", value)
            return [] if inside else [f"{at}: {value} is out of range"]
        if not isinstance(value, TYPES[kind]):
            return [f"{at}: {value!r} is no {kind}"]
        if kind == "array":
            short = [f"{at}: too short"] if len(value) < schema.get("minItems", 0) else []
            return short + [f for i, v in enumerate(value) for f in self.faults(schema["items"], v, f"{at}[{i}]", closed)]
        if kind != "object" or "properties" not in schema and "additionalProperties" not in schema:
            return []
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        found = [f"{at}: {name} is missing" for name in schema.get("required", []) if name not in value]
        for name, inner in value.items():
            if name in known or others:
                found += self.faults(known.get(name, others), inner, f"{at}.{name}", closed)
            elif closed:
                found.append(f"{at}: {name} is not described")
        return found


@pytest.fixture(scope="module")
def description(server):
    return Description(requests.get(f"{server.url}/openapi.json", timeout=10).json())


def operations(description):
    for path, methods in description.document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_the_checker_finds_faults(description):
    error = {"error": {"message": "m", "type": "t", "param": None, "code": "c"}}
    schema = {"$ref": "#/components/schemas/Error"}
    assert not description.faults(schema, error)
    for wrong in ({}, [], {"error": error["error"] | {"code": 1}}, {"error": error["error"] | {"more": 1}}):
        assert description.faults(schema, wrong)


def test_every_route_is_described(server, description):
    described = {path.replace("/{name}", "") for path in description.document["paths"]}
    assert requests.get(f"{server.url}/nowhere", timeout=10).status_code == 404
    # A flag that is told of another names all that there are.
    told = subprocess.run([BINARY, "serve", MODEL, "--port", "0", "--open-routes", "/nowhere"],
                          capture_output=True, text=True, timeout=30).stderr
    assert set(re.findall(r"/[\w./{}]*", told.split("there are")[1])) == described


def stored(server):
    """The id of a response."""
    body = {"input": "What is 2 + 2?", "max_output_tokens": 1}
    return requests.post(f"{server.url}/v1/responses", json=body, timeout=60).json()["id"]


def test_answers_are_as_described(server, description):
    seen = set()
    for path, method, operation in operations(description):
        for body in ASKED.get(path, [None]):
            if body is not None:
                request = operation["requestBody"]["content"]["application/json"]["schema"]
                assert not description.faults(request, body)
            url = server.url + path.replace("{name}", "tiny-r1").replace("{id}", stored(server))
            answer = requests.request(method, url, json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            media = answer.headers["Content-Type"].split(";")[0]
            schema = operation["responses"]["200"]["content"][media]["schema"]
            seen.add((path, media))
            values = {
                "text/plain": lambda: [answer.text],
                "text/html": lambda: [answer.text],
                "application/json": lambda: [answer.json()],
                "text/event-stream": lambda: [json.loads(e) for e in re.findall(r"^data: (\{.*)$", answer.text, re.M)],
            }[media]()
            assert values
            for value in values:
                assert not description.faults(schema, value), f"{path}: {value}"
    described = {(path, media) for path, _, operation in operations(description)
                 for media in operation["responses"]["200"]["content"]}
    assert seen == described


def outside(description, schema):
    """Values that a schema does not allow."""
    schema = description.resolved(schema)
    if not {"type", "anyOf", "enum"} & set(schema):
        return
    if "minimum" in schema:
        yield schema["minimum"] - 1
    if "maximum" in schema:
        yield schema["maximum"] + 1
    yield {"object": 5, "array": "x", "string": 5, "boolean": "x", "integer": "x", "number": "x"}.get(
        schema.get("type"), {"neither": 1})


def test_what_the_description_forbids_is_refused_as_described(server, description):
    for path, method, operation in operations(description):
        if "requestBody" not in operation:
            continue
        schema = description.resolved(operation["requestBody"]["content"]["application/json"]["schema"])
        for name, inner in schema["properties"].items():
            for value in outside(description, inner):
                # /tokenize takes a text or a conversation, and reads nothing of the other.
                of_chat = path == "/tokenize" and name in ("messages", "tools", "chat_template_kwargs")
                body = ASKED[path][1 if of_chat else 0] | {name: value}
                answer = requests.post(server.url + path, json=body, timeout=60)
                expected = 404 if name == "model" and answer.status_code == 404 else 400
                assert answer.status_code == expected, f"{path} {name}={value}: {answer.text[:200]}"
                assert not description.faults(REFUSAL, answer.json())
        for name in schema["required"]:
            body = {key: value for key, value in ASKED[path][0].items() if key != name}
            answer = requests.post(server.url + path, json=body, timeout=10)
            assert answer.status_code == 400 and name in answer.text


def test_refusals_are_described(description, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("anna sk-a requests-per-minute=1\n")
    key = {"X-Api-Key": "sk-a"}
    with serving("--api-key-file", keys, "--open-routes", "none") as server:

        def assert_refused(expected, headers, *, about_server=True, methods=("get", "post", "delete")):
            for path, method, operation in operations(description):
                if method not in methods or (operation["security"] == [] and not about_server):
                    continue
                answer = requests.request(method, server.url + path, headers=headers, timeout=10)
                assert answer.status_code == expected, f"{method} {path}: {answer.text[:200]}"
                refusal = description.resolved(operation["responses"][str(expected)])
                schema = refusal["content"]["application/json"]["schema"]
                assert not description.faults(schema, answer.json()), f"{method} {path}"

        assert_refused(401, {})
        assert_refused(403, key | {"Host": "evil.example"})
        assert_refused(415, key | {"Content-Type": "text/plain"}, about_server=False, methods=("post",))
        assert requests.get(f"{server.url}/v1/models", headers=key, timeout=10).status_code == 200
        assert_refused(429, key, about_server=False)
    for path, method, operation in operations(description):
        # Connections for which there is no room are refused unread, whatever they would ask.
        assert {"429", "503"} <= set(operation["responses"]), f"{method} {path}"
