"""Asks for answers to random JSON schemas, at a high temperature, and validates them with jsonschema.

    random_schemas.py --binary build/bin/fathom --model models/tiny-r1    # starts the server, and stops it
    random_schemas.py --binary build/bin/fathom --load-format dummy       # random weights
    random_schemas.py --url http://127.0.0.1:8000 --schemas 50            # a running server

Fails if an answer that ended is invalid, or a schema is refused.
"""

import argparse
import contextlib
import json
import random
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import jsonschema

from accuracy import running_server

MAX_TOKENS = 400
TIMEOUT_S = 120


def random_schema(rng, depth=0):
    """What ends soon, whatever a model makes of it: strings and arrays are bounded."""
    kinds = ["integer", "number", "string", "boolean", "null", "enum", "const"]
    if depth < 3:
        kinds += ["object", "object", "array", "anyOf", "ref"]
    kind = rng.choice(kinds if depth else ["object", "array", "anyOf"])
    if kind == "integer":
        low = rng.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 1000)}
    if kind == "number":
        return {"type": "number", "minimum": 0, "maximum": rng.randint(1, 9)} if rng.random() < 0.5 else {"type": "number"}
    if kind == "string":
        if rng.random() < 0.3:
            return {"type": "string", "pattern": rng.choice(["^[a-z]{1,4}$", "^\\d{4}-\\d{2}$", "^(x|y)z$", "[0-9]{2}", "^a.b$"])}
        return {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 8)}
    if kind in ("boolean", "null"):
        return {"type": kind}
    if kind == "enum":
        return {"enum": rng.sample(["a", "b\"\\", "é\n", 1, -2.5, True, None, [1], {"k": "v"}], rng.randint(1, 4))}
    if kind == "const":
        return {"const": rng.choice(["x", 7, None, ["a"]])}
    if kind == "array":
        least = rng.randint(0, 2)
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": least, "maxItems": least + rng.randint(0, 2)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
    if kind == "ref":
        return {"$ref": "#/$defs/shared"}
    names = rng.sample(["a", "b", "name", "with space", "ünï", "q\"uote"], rng.randint(1, 4))
    return {"type": "object", "properties": {name: random_schema(rng, depth + 1) for name in names},
            "required": rng.sample(names, rng.randint(0, len(names))), "additionalProperties": False}  # fmt: skip


def post(url, body):
    """The answer to a completion's body, or the error that the server says; its status."""
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def ask(url, seed):
    """The schema, what became of it (valid, invalid, cut, refused), and why."""
    rng = random.Random(seed)
    schema = random_schema(rng) | {"$defs": {"shared": random_schema(rng, 3)}}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": rng.random() < 0.5}}
    with urllib.request.urlopen(f"{url}/v1/models", timeout=TIMEOUT_S) as answer:
        model = json.load(answer)["data"][0]["id"]
    status, answer = post(url, {"model": model, "messages": [{"role": "user", "content": "What is 2 + 2?"}], "max_tokens": MAX_TOKENS,
                                "seed": seed, "temperature": 1.5, "response_format": form,
                                "chat_template_kwargs": {"thinking": False}})  # fmt: skip
    if status != 200:
        return schema, "refused", answer["error"]["message"]
    choice = answer["choices"][0]
    if choice["finish_reason"] != "stop":
        return schema, "cut", ""
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(choice["message"]["content"]))
    except (ValueError, jsonschema.ValidationError) as error:
        return schema, "invalid", f"{choice['message']['content']!r}: {error}"
    return schema, "valid", ""


def ask_all(url, seeds):
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda seed: ask(url, seed), seeds))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="of a running server")
    where.add_argument("--binary", help="the fathom to start, on a free port")
    parser.add_argument("--model", default="models/tiny-r1", help="the checkpoint for --binary")
    parser.add_argument("--load-format", default="auto", choices=["auto", "dummy"], help="dummy: random weights in the model's place")
    parser.add_argument("--schemas", type=int, default=300, help="how many (300)")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = args.url or stack.enter_context(running_server(args.binary, args.model, "cpu", ["--load-format", args.load_format]))
        began = time.monotonic()
        asked = ask_all(url, range(args.schemas))
        seconds = time.monotonic() - began
    outcomes = Counter(outcome for _, outcome, _ in asked)
    for schema, outcome, why in asked:
        if why:
            print(f"{outcome}: {why} under {json.dumps(schema)}")
    print(f"{len(asked)} schemas: {outcomes['valid']} answers are valid, {outcomes['invalid']} are not, {outcomes['cut']} were cut at "
          f"{MAX_TOKENS} tokens; {outcomes['refused']} schemas were refused; {seconds:.0f} s")
    return int(bool(outcomes["invalid"] or outcomes["refused"]))


if __name__ == "__main__":
    sys.exit(main())
