#!/usr/bin/env python3
"""Asks a server that runs tiny-r1 every field that the official clients have, through these clients,
runs the tests of other clients, and writes what came of it into docs/api.md; --check says whether that
is what stands there.

    build/venv/bin/python tools/make_api_fields.py --binary build/bin/fathom"""

import argparse
import difflib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- fields: begin -->", "<!-- fields: end -->"

CALL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"name": "n", "schema": {"type": "object"}}
# Allowed to be called, as a chat has it, and as the Responses API has it.
ONE_ALLOWED = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
# Forms of answers in fields of vLLM and SGLang, and what a chat alone can show.
FORMS = [
    ("structured_outputs", {"json": {}}), ("structured_outputs", {"choice": ["4"]}), ("guided_json", {}), ("guided_regex", "[0-9]"),
    ("guided_choice", ["4", "5"]), ("guided_grammar", 'root ::= "4"'), ("json_schema", "{}"), ("regex", "[0-9]"), ("ebnf", 'root ::= "4"'),
    ("guided_decoding_backend", "xgrammar"), ("guided_decoding_backend", "outlines"),
]
OF_CHAT = [
    ("min_p", 0.1), ("seed", 1), ("presence_penalty", 1), ("frequency_penalty", 1), ("repetition_penalty", 1.1), ("logit_bias", {"5": -1}),
    ("min_tokens", 2), ("ignore_eos", True), ("stop_token_ids", [5]), ("bad_words", ["x"]), ("allowed_token_ids", [5]),
    ("truncate_prompt_tokens", 5), ("cache_salt", "s"), ("chat_template_kwargs", {"thinking": False}), *FORMS, ("n", 2),
    ("logprobs", True), ("prompt_logprobs", 1), ("return_token_ids", True), ("include_reasoning", False), ("priority", 1),
    ("thinking_token_budget", 5), ("lora_path", "x"), ("vllm_xargs", {"a": 1}),
]
SAID = [{"role": "user", "content": "What is 2 + 2?"}]
CHAT = {"model": "tiny-r1", "messages": SAID, "max_tokens": 40}
TEXT = {"model": "tiny-r1", "prompt": "What is", "max_tokens": 4}
RESPONSE = {"model": "tiny-r1", "input": "What is 2 + 2?", "max_output_tokens": 40}
CLAUDE_TOOL = {"name": "f", "input_schema": {"type": "object"}}
CLAUDE_FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
PREFILL = [*SAID, {"role": "assistant", "content": "It is", "prefix": True}]

# By endpoint: the field and what it asks.
FIELDS = {
    "/v1/chat/completions": [
        ("stream", True), ("stream_options", {"include_usage": True}), ("n", 2), ("seed", 1), ("stop", ["x"]), ("temperature", 1.5),
        ("top_p", 0.9), ("top_k", 5), ("min_p", 0.1), ("presence_penalty", 1), ("frequency_penalty", 1), ("repetition_penalty", 1.1),
        ("logit_bias", {"5": -1}), ("logprobs", True), ("top_logprobs", 2), ("max_completion_tokens", 9), ("max_tokens", 4096),
        ("min_tokens", 2), ("ignore_eos", True), ("stop_token_ids", [5]), ("tools", [CALL]), ("tool_choice", "none"),
        ("tool_choice", "required"), ("tool_choice", {"type": "function", "function": {"name": "f"}}), ("parallel_tool_calls", False),
        ("response_format", {"type": "json_object"}), ("response_format", {"type": "json_schema", "json_schema": SCHEMA}),
        ("reasoning_effort", "low"), ("thinking", {"type": "disabled"}), ("enable_thinking", False), ("chat_template_kwargs", {"thinking": False}),
        ("include_reasoning", False), ("messages", PREFILL), ("continue_final_message", True), ("prompt_logprobs", 1),
        ("return_token_ids", True), ("return_tokens_as_token_ids", True), ("truncate_prompt_tokens", 5), ("service_tier", "auto"),
        ("user", "me"), ("metadata", {"a": "b"}), ("store", False), ("prediction", {"type": "content", "content": "4"}),
        ("bad_words", ["x"]), ("allowed_token_ids", [5]), ("logprob_token_ids", [5]), ("priority", 1), ("documents", [{"text": "x"}]),
        *FORMS, ("chat_template", "x"), ("thinking_token_budget", 5), ("tool_choice", {"type": "allowed_tools", "allowed_tools": ONE_ALLOWED}),
        ("lora_path", "x"), ("vllm_xargs", {"a": 1}), ("mm_processor_kwargs", {"a": 1}),
    ],
    "/v1/completions": [
        ("stream", True), ("prompt", [[1, 2], [3]]), ("n", 2), ("echo", True), ("logprobs", 2), ("max_tokens", 4096), ("stop", "x"), ("seed", 1),
        ("suffix", "x"), ("best_of", 2), ("prompt_logprobs", 1), ("return_token_ids", True), ("truncate_prompt_tokens", 1),
        ("use_beam_search", True), ("response_format", {"type": "json_object"}), *FORMS,
    ],
    "/v1/responses": [
        ("stream", True), ("instructions", "Be brief."), ("store", False), ("temperature", 0.5), ("top_p", 0.9),
        ("tools", [{"type": "function", "name": "f", "parameters": {"type": "object"}}]), ("tools", [{"type": "web_search"}]),
        ("tool_choice", "required"), ("parallel_tool_calls", False), ("reasoning", {"effort": "low"}), ("include", ["reasoning.encrypted_content"]),
        ("include", ["message.output_text.logprobs"]), ("text", {"format": {"type": "json_object"}}), ("truncation", "auto"), ("background", True),
        ("previous_response_id", "resp_0"), ("metadata", {"a": "b"}), ("top_logprobs", 2), ("conversation", "conv_0"), ("prompt_cache_key", "k"),
        ("tool_choice", ALLOWED), ("text", {"format": {"type": "json_schema"} | SCHEMA}), ("stop", "x"), ("top_k", 5), *OF_CHAT,
    ],
    "/v1/messages": [
        ("stream", True), ("system", "Be brief."), ("temperature", 0.5), ("top_p", 0.9), ("top_k", 5), ("stop_sequences", ["x"]),
        ("tools", [CLAUDE_TOOL]), ("tools", [{"type": "web_search_20260209", "name": "web_search"}]), ("tool_choice", {"type": "none"}),
        ("tool_choice", {"type": "any"}), ("thinking", {"type": "enabled", "budget_tokens": 1024}), ("metadata", {"user_id": "me"}),
        ("messages", PREFILL[:1] + [{"role": "assistant", "content": "It is"}]), ("output_config", {"effort": "low"}),
        ("messages", [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "data:,"}}]}]),
        ("container", "c"), ("mcp_servers", ["x"]), ("service_tier", "auto"), ("stop", "x"), ("output_config", {"format": CLAUDE_FORMAT}), *OF_CHAT,
    ],
}  # fmt: skip
NEEDS = {
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "logprob_token_ids": {"logprobs": True},
    "tool_choice": {"tools": [CALL]},
    "continue_final_message": {"add_generation_prompt": False, "messages": PREFILL[:1] + [{"role": "assistant", "content": "It is"}]},
}


def senders(server):
    client, claude = server.client(), server.claude()

    def post(sdk, path, base):
        def send(body):
            return sdk.post(path, body=base | body, cast_to=object)

        return send

    return {
        "/v1/chat/completions": ("openai", post(client, "/chat/completions", CHAT)),
        "/v1/completions": ("openai", post(client, "/completions", TEXT)),
        "/v1/responses": ("openai", post(client, "/responses", RESPONSE)),
        "/v1/messages": ("anthropic", post(claude, "/v1/messages", CHAT)),
    }


def outcome(send, path, field, value):
    body = dict(NEEDS.get(field, {})) if path == "/v1/chat/completions" else {}
    if field == "tool_choice" and path != "/v1/chat/completions":
        tool = CLAUDE_TOOL if path == "/v1/messages" else CALL["function"] | {"type": "function"}
        body = {"tools": [tool]}
    try:
        send(body | {field: value})
    except Exception as error:  # noqa: BLE001: whatever the client makes of a refusal
        if getattr(error, "status_code", None) is None:
            raise
        message = error.body if isinstance(error.body, dict) else {}
        message = message.get("error", message).get("message") or str(error)
        return f"{error.status_code}: {message}"
    return "works"


def short(value):
    text = json.dumps(value)
    return (text if len(text) <= 40 else text[:37] + "...").replace("|", "\\|")


def wrapped(text, indent="  "):
    return textwrap.wrap(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def table(server):
    """A row for what is asked, a column for each endpoint: works, or the number of what is said."""
    rows, said, clients = {}, {}, []
    for path, (client, send) in senders(server).items():
        clients.append(f"`{path}` through `{client}` {importlib.metadata.version(client)}")
        for field, value in FIELDS[path]:
            answer = outcome(send, path, field, value)
            if answer != "works":
                answer = str(said.setdefault(answer, len(said) + 1))
            row = rows.setdefault(f"`{field}: {short(value)}`", {})
            row[path] = answer if row.get(path, answer) == answer else f"{row[path]}, {answer}"
    lines = ["", *wrapped(f"{'; '.join(clients)}. A number is that of the refusal below; nothing, that nobody asked.", ""), ""]
    lines += ["| field | " + " | ".join(path.removeprefix("/v1/") for path in FIELDS) + " |", "|---" * (1 + len(FIELDS)) + "|"]
    lines += [f"| {asked} | {' | '.join(row.get(path, '') for path in FIELDS)} |" for asked, row in rows.items()]
    lines.append("")
    for answer, number in said.items():
        lines += wrapped(f"{number}. {answer}", "   ")
    return "\n".join(lines) + "\n"


# Tests in tests/e2e/test_clients.py begin with these; packages.
CLIENTS = {
    "langchain": "langchain-openai",
    "litellm": "litellm",
    "instructor": "instructor",
    "llm": "llm",
    "openai_agents": "openai-agents",
}


def through_clients():
    """What tests with clients that stand on OpenAI's saw, by client."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [sys.executable, "-m", "pytest", "-q", ROOT / "tests/e2e/test_clients.py", f"--junitxml={report.name}"]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if ran.returncode not in (0, 1):
            sys.exit(ran.stdout)
        cases = list(ElementTree.parse(report.name).iter("testcase"))
    lines = ["", "**Clients that stand on OpenAI's**", ""]
    for name, package in CLIENTS.items():
        prefix = f"test_{name}_"
        told = {True: [], False: []}
        for case in cases:
            if case.get("name").startswith(prefix):
                failed = case.find("failure") is not None or case.find("error") is not None
                what = case.get("name").removeprefix(prefix)
                told[not failed].append(what.partition("[")[0].replace("_", " ") + (f" ({what.partition('[')[2][:-1]})" if "[" in what else ""))
        said = [f"works: {', '.join(told[True])}"] if told[True] else []
        said += [f"**fails**: {', '.join(told[False])}"] if told[False] else []
        if not said:
            sys.exit(f"no test in tests/e2e/test_clients.py begins with {prefix}")
        lines += wrapped(f"- {package} {importlib.metadata.version(package)}: {'; '.join(said)}")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--page", default=ROOT / "docs" / "api.md", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is stale")
    options = parser.parse_args()
    os.environ["FATHOM_BINARY"] = str(Path(options.binary).resolve())
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    from conftest import serving

    with serving() as server:
        made = table(server)
    made += through_clients()
    text = options.page.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    fresh = f"{head}{BEGIN}\n{made}\n{END}{tail}"
    if not options.check:
        options.page.write_text(fresh)
    elif fresh != text:
        sys.stdout.writelines(difflib.unified_diff(text.splitlines(True), fresh.splitlines(True), "docs/api.md", "now"))
        sys.exit("docs/api.md is stale: tools/make_api_fields.py writes it anew")


if __name__ == "__main__":
    main()
