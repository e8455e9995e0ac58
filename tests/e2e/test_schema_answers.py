"""What comes out of schemas that are odd at their edges is valid by Python's jsonschema, or they are refused by their place."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest
import requests

STRINGS = [{"type": "string", "pattern": pattern} for pattern in (
    "é.{3}", "^[^a]{4}$", "^\\S{5}$", "\\W{3}", "[^é]{3}", "a\\sb", "(a|\\n)+", "^[\\x00-\\uffff]{5}$", "^[\\ud000-\\uf000]{2}$", ".]")]  # fmt: skip
OBJECTS = [
    {"type": "object", "patternProperties": {"^[ab]$": {"type": "integer", "minimum": 0}}, "additionalProperties": False, "maxProperties": 5},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "null"}, "maxProperties": 4},
]


def ask(server, schema, seed):
    body = {"model": "tiny-r1", "prompt": "It is", "max_tokens": 400, "seed": seed, "temperature": 2, "guided_json": schema}
    return requests.post(f"{server.url}/v1/completions", json=body, timeout=60)


@pytest.mark.parametrize("schema", STRINGS + OBJECTS, ids=json.dumps)
def test_answers_are_valid(server, schema):
    """A property may come twice where the schema does not name it: Python and JavaScript take the last."""
    with ThreadPoolExecutor(4) as pool:
        answers = [answer.json()["choices"][0] for answer in pool.map(lambda seed: ask(server, schema, seed), range(6))]
    ended = [answer["text"] for answer in answers if answer["finish_reason"] == "stop"]
    assert ended
    for text in ended:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
        assert "\ufffd" not in text
        assert max(map(len, re.findall(r"[ \t\r\n]+", text)), default=0) <= 32  # between the parts of JSON


@pytest.mark.parametrize("schema, says", [
    ({"properties": {"n": {"type": "integer", "minimum": 3, "maximum": 2}}}, "guided_json: #/properties/n: minimum and maximum leave no number"),
    ({"type": "text"}, 'guided_json: #/type: "text" is no type'),
    ({"type": "string", "pattern": "\\ud800"}, "guided_json: #/pattern, character 1: U+D800 is half of a character"),
    ({"type": "string", "pattern": "a\\n"}, "guided_json: #/pattern matches no string that JSON writes as it stands"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "guided_json: #/oneOf: its branches may overlap"),
    ({"type": "string", "pattern": "\ud800"}, "the body is not JSON"),
])  # fmt: skip
def test_what_cannot_be_held_to_is_refused_by_its_place(server, schema, says):
    answer = ask(server, schema, 1)
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(says), answer.text
