"""What hostile clients do: each a function of an `Attack` (gate.py) that goes on for the attack's
time. What a case sends whole has one line in the log; `certain=False` where the server may never
have seen it."""

import copy
import json
import re
import selectors
import sys
import time
from pathlib import Path

from gate import reset
from test_memory import MIB

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hostile_grammars import HOSTILE
from soak import Clients

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SHORT = {"prompt": [1, 200, 300], "max_tokens": 2}
LONG = SHORT | {"max_tokens": 2000, "ignore_eos": True}
STREAM = LONG | {"stream": True}
SERVED, FULL = (200, 429, 503), (429, 503)
CLOSED = (BrokenPipeError, ConnectionResetError)
LEFT_S = 0.02  # or a client has more connections than it may, and the next are refused unread


def trickle(attack, count, begin):
    """So many connections that send a byte every now and then, until they are told to go."""
    clients = []
    while attack.going():
        while len(clients) < count:
            clients.append(attack.connect())
            clients[-1].sendall(begin())
        for client in list(clients):
            try:
                client.sendall(b"x")
            except CLOSED:
                clients.remove(client)
                client.close()
        time.sleep(0.1)
    for client in clients:
        client.close()


def slow_heads(attack):
    trickle(attack, 100, lambda: b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Long: ")


def slow_bodies(attack):
    trickle(attack, 100, lambda: attack.head(100_000, COMPLETIONS))


def announced_bodies(attack):
    for _ in range(100):
        attack.hold(attack.connect()).sendall(attack.head(8 * MIB) + b"{")
    attack.hold_on()


def bodies_that_never_end(attack):
    def work(_):
        with attack.connect() as client:
            try:
                client.sendall(attack.head(4 * MIB) + b" " * (3 * MIB))
                time.sleep(0.1)
            except CLOSED:
                pass  # refused: too many of them

    attack.crowd(8, work)


def bodies_that_are_left(attack):
    def work(rng):
        with attack.connect() as client:
            client.sendall(attack.head(100_000) + b" " * rng.randint(1, 50_000))
        time.sleep(LEFT_S)

    attack.crowd(4, work)


def bodies_of_one_byte_chunks(attack):
    body = json.dumps(SHORT).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"

    def work(_):
        with attack.connect() as client:
            client.sendall(attack.head(None, COMPLETIONS, more="Transfer-Encoding: chunked\r\nConnection: close\r\n"))
            for at in range(0, len(chunks), 7):
                client.sendall(chunks[at : at + 7])
            attack.answer(client, SERVED)

    attack.crowd(4, work)


def bodies_too_large(attack):
    def work(_):
        with attack.connect() as client:
            client.sendall(attack.head(9 * MIB))
            attack.answer(client, (413,))

    attack.crowd(4, work)


def long_texts(attack):
    body = json.dumps({"prompt": "What is two and two? " * (7 * MIB // 21), "max_tokens": 1})
    attack.crowd(3, lambda _: attack.ask(body, (400, 413, 503), path=COMPLETIONS))


def long_words(attack):
    def work(rng):
        piece = rng.choice(["a", " ", "é", "\n", "\u0301", "9", "aé 9\n", "</think>", "<｜"])
        attack.ask({"prompt": piece * 200_000, "max_tokens": 1}, (400, 413, 503), path=COMPLETIONS)

    attack.crowd(3, work)


def dense_json(attack):
    def work(rng):
        piece = rng.choice(["{},", "[],", "1,", '{"a":1},', '"",', "-0.1e1,", "[" + "1," * 999 + "1],"])
        inner = "[" + (piece * (4 * MIB // len(piece)))[:-1] + "]"
        body = '{"messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"a":%s}}' % inner
        attack.ask(body, (200, 400, 413, 503))  # numbers of seven bytes just fit

    attack.crowd(2, work)


def deep_json(attack):
    def work(rng):
        level = rng.choice(["[", '{"a":', '[{"a":'])
        attack.ask('{"messages":' + level * rng.randint(60, 100_000), (400,))

    attack.crowd(4, work)


def many_keys(attack):
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]} | {f"key {i}": i for i in range(50_000)})
    attack.crowd(3, lambda _: attack.ask(body, (200, 400, 413, 503)))


def many_template_names(attack):
    names = {f"name{i}": i for i in range(50_000)}
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "chat_template_kwargs": names})
    attack.crowd(4, lambda _: attack.ask(body, (200, 400, 413, 429, 503)))


def many_messages(attack):
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}] * 50_000, "max_tokens": 1})
    attack.crowd(3, lambda _: attack.ask(body, (400, 413, 503)))


def requests_that_are_refused(attack):
    bodies = [{}, {"messages": 5}, SHORT | {"temperature": -9}, SHORT | {"model": "none"}, "nothing", '{"prompt":',
              SHORT | {"logit_bias": {"9999999": 1}}, SHORT | {"stop": [""]}, SHORT | {"n": 10**30}]

    def work(rng):
        path = rng.choice([COMPLETIONS, CHAT, "/nowhere", "/v1/models"])
        attack.ask(rng.choice(bodies), (400, 404, 405), path=path)

    attack.crowd(4, work)


CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
TOOL = {"name": "f", "parameters": {"type": "object"}, "strict": True}
SOUND = [
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]},
                         {"role": "assistant", "content": None, "tool_calls": CALLS},
                         {"role": "tool", "tool_call_id": "c", "content": "5"}],
            "tools": [{"type": "function", "function": TOOL}], "tool_choice": "required", "stop": ["x"], "max_tokens": 3}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hi"},
                                   {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
                                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "5"}]}],
                      "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"}, "max_tokens": 3,
                      "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                                 {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                                 {"type": "function_call_output", "call_id": "c", "output": "5"}],
                       "tools": [{"type": "function"} | TOOL], "tool_choice": "required", "max_output_tokens": 3,
                       "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}}),
]  # fmt: skip
ODD = [None, True, 0, -1, 2**63 - 1, 2**64 - 1, 1e300, 0.5, "", "x", "{", [], {}, [[]], [{}], [None], CALLS, [TOOL], TOOL]


def places(value):
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def damaged_fields(attack):
    def work(rng):
        path, sound = rng.choice(SOUND)
        body = copy.deepcopy(sound)
        for _ in range(rng.randint(1, 3)):
            holder, key = rng.choice(list(places(body)) or [({}, "")])
            holder[key] = copy.deepcopy(rng.choice(ODD))
        attack.ask(body, (200, 400, 404, 429), path=path)

    attack.crowd(2, work)


def damaged_bytes(attack):
    def work(rng):
        whole = bytearray(attack.whole(SHORT, path=COMPLETIONS, certain=False))
        for _ in range(rng.randint(1, 4)):
            whole[rng.randrange(len(whole))] = rng.randrange(256)
        with attack.connect() as client:
            client.sendall(whole[: rng.randint(1, len(whole))])
            client.settimeout(rng.random() / 4)
            try:
                client.recv(1000)
            except OSError:
                pass

    attack.crowd(4, work)


def other_protocols(attack):
    openings = [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"SSH-2.0-OpenSSH_9.2\r\n", b"\r\n" * 3000, b"\0" * 40_000, b"GET " + b"/" * 40_000, b"HELO x\r\n"]

    def work(rng):
        with attack.connect() as client:
            try:
                client.sendall(rng.choice(openings))
                client.settimeout(0.2)
                client.recv(1000)
            except OSError:
                pass

    attack.crowd(4, work)


def large_heads(attack):
    def work(rng):
        many = "".join(f"X-{i}: {i}\r\n" for i in range(5000))
        with attack.connect() as client:
            try:
                head = attack.head(2, certain=False, more=rng.choice([many, f"X-Long: {'x' * 60_000}\r\n"]))
                client.sendall(head)
                attack.answer(client, (431,))
            except CLOSED:
                pass

    attack.crowd(4, work)


def floods_of_connections(attack):
    attack.crowd(4, lambda _: attack.connect().close())


def idle_connections(attack):
    for _ in range(400):
        attack.hold(attack.connect())
    attack.hold_on()


def resets(attack):
    def work(rng):
        client = attack.connect()
        client.sendall(attack.whole(STREAM, path=COMPLETIONS, certain=False))
        time.sleep(rng.random() / 100)
        reset(client)

    attack.crowd(4, work)


def pipelines(attack):
    def work(_):
        with attack.connect() as client:
            heads = [attack.head(None, "/v1/models", "GET", more="") for _ in range(99)]
            heads.append(attack.head(None, "/v1/models", "GET"))
            client.sendall(b"".join(heads))
            assert attack.answer(client, (200,)).count(b"HTTP/1.1 200 OK") == 100

    attack.crowd(2, work)


def pipelines_that_nobody_reads(attack):
    heads = 1000
    for _ in range(50):
        client = attack.hold(attack.connect(4096))
        client.settimeout(0.05)
        try:
            client.sendall(b"".join(attack.head(None, "/v1/models", "GET", certain=False, more="") for _ in range(heads)))
        except OSError:
            pass
    attack.hold_on()


def questions_about_the_server(attack):
    def work(rng):
        with attack.connect() as client:
            path = rng.choice(["/metrics", "/health", "/load", "/openapi.json", "/"])
            client.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            attack.answer(client, (200,))

    attack.crowd(4, work)


def metrics_for_hundreds(attack):
    """Each asks four times at once, and again as soon as it has an answer."""
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    whole = re.compile(rb"HTTP/1.1 200 (?s:.*?)Content-Length: (\d+)\r\n(?s:.*?)\r\n\r\n")

    def take(client, answers):
        """Whether the server goes on: who has more connections than it may is answered once on each."""
        try:
            piece = client.recv(MIB)
            answers += piece
            while (head := whole.match(answers)) and len(answers) >= head.end() + int(head[1]):
                del answers[: head.end() + int(head[1])]
                client.sendall(request)
        except ConnectionError:
            return False
        return bool(piece)

    def work(_):
        with selectors.DefaultSelector() as ready:
            for _ in range(500):
                client = attack.hold(attack.connect())
                client.sendall(4 * request)
                ready.register(client, selectors.EVENT_READ, bytearray())
            while attack.going():
                for key, _ in ready.select(0.1):
                    if not take(key.fileobj, key.data):
                        ready.unregister(key.fileobj)

    attack.crowd(1, work)


def names_that_cannot_be_printed(attack):
    path = "/" + "%00%1b[2J%0a%ff" * 1000
    attack.crowd(4, lambda _: attack.ask("", (404,), path=path))


def streams_that_are_left(attack):
    def work(_):
        with attack.connect() as client:
            client.sendall(attack.whole(STREAM, path=COMPLETIONS))
            client.recv(10)

    attack.crowd(4, work)


def requests_that_are_left(attack):
    def work(_):
        with attack.connect() as client:
            client.sendall(attack.whole(LONG, path=COMPLETIONS))
        time.sleep(LEFT_S)

    attack.crowd(2, work)


def ends_that_are_half(attack):
    def work(_):
        with attack.connect() as client:
            client.sendall(attack.whole(SHORT, path=COMPLETIONS))
            client.shutdown(1)
            attack.answer(client, SERVED)

    attack.crowd(4, work)


def unread(attack, body, count):
    for _ in range(count):
        client = attack.hold(attack.connect(4096))
        client.sendall(attack.whole(body, path=COMPLETIONS))
    attack.hold_on()


def streams_that_nobody_reads(attack):
    unread(attack, STREAM | {"logprobs": 20}, 30)


def answers_that_nobody_reads(attack):
    unread(attack, SHORT | {"prompt": [5] * 1000, "echo": True, "logprobs": 20}, 30)


def large_answers(attack):
    body = {"prompt": [5 + i for i in range(500)], "echo": True, "logprobs": 20, "n": 4, "max_tokens": 1}
    attack.crowd(2, lambda _: attack.ask(body, SERVED, path=COMPLETIONS))


def texts_of_many_tokens(attack):
    body = {"tokens": [5 + i % 1000 for i in range(4096)]}
    text = {"prompt": "What is two and two? " * 20_000, "return_token_strs": True}

    def work(rng):
        path, asked = rng.choice([("/detokenize", body), ("/tokenize", text)])
        attack.ask(asked, (200, 400), path=path)

    attack.crowd(3, work)


def more_than_the_queue_holds(attack):
    attack.crowd(40, lambda _: attack.ask(SHORT | {"n": 8, "temperature": 1}, SERVED, path=COMPLETIONS))


def too_many_choices(attack):
    attack.crowd(3, lambda rng: attack.ask(SHORT | {"n": rng.choice([33, 129, 10**9])}, (400,), path=COMPLETIONS))


def hostile_grammars(attack):
    def work(rng):
        with attack.connect() as client:
            client.sendall(attack.whole(SHORT | rng.choice(HOSTILE), path=COMPLETIONS))
            client.settimeout(1)
            try:
                client.recv(1000)
            except TimeoutError:
                pass  # it leaves, as nobody waits here for what takes long

    attack.crowd(6, work)


def grammars_that_are_slow_late(attack):
    body = SHORT | {"n": 4, "max_tokens": 300, "guided_regex": "q{99}q{50}(((.{0,9}){0,9}){0,9}){0,8}"}
    attack.crowd(2, lambda _: attack.ask(body, (400,), path=COMPLETIONS))


def long_answers_under_grammars(attack):
    body = SHORT | {"n": 2, "temperature": 1, "max_tokens": 3000, "stream": True, "guided_regex": "[a-z ]{5000,9000}"}
    attack.crowd(1, lambda _: attack.ask(body, SERVED, path=COMPLETIONS))


def damaged_schemas(attack):
    attack.crowd(2, lambda rng: attack.ask(Clients.body(rng, response_format={"type": "json_schema", "json_schema": {
        "name": "x", "schema": rng.choice([{"type": 5}, {"$ref": "#/x", "x": {"anyOf": 5}}, {"enum": []}, {"pattern": "("}, [], ""])}}),
        (200, 400, 429)))


def long_prompts(attack):
    def work(rng):
        attack.ask(SHORT | {"prompt": [rng.randint(5, 900) for _ in range(2000)]}, SERVED, path=COMPLETIONS)

    attack.crowd(1, work)


CASES = [
    slow_heads, slow_bodies, announced_bodies, bodies_that_never_end, bodies_that_are_left, bodies_of_one_byte_chunks,
    bodies_too_large, long_texts, long_words, dense_json, deep_json, many_keys, many_template_names, many_messages,
    requests_that_are_refused, damaged_fields, damaged_bytes, other_protocols, large_heads, floods_of_connections, idle_connections,
    resets, pipelines, pipelines_that_nobody_reads, questions_about_the_server, metrics_for_hundreds,
    names_that_cannot_be_printed, streams_that_are_left, requests_that_are_left, ends_that_are_half, streams_that_nobody_reads,
    answers_that_nobody_reads, large_answers, texts_of_many_tokens, more_than_the_queue_holds, too_many_choices,
    hostile_grammars, grammars_that_are_slow_late, long_answers_under_grammars, damaged_schemas, long_prompts,
]  # fmt: skip
