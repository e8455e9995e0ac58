#!/usr/bin/env python3
"""Holds chat templates against Python's jinja2, set up as transformers does.

    tests/fuzz/chat_template_differential.py --count 3000 [--seed N] [--binary build/tests/chat_render]
                                             [--templates DIR]

Renders random small templates over random data with both, and tiny-r1's template (and every
*.jinja of DIR) over random conversations. Where jinja2 renders, the text must be equal; where it
raises, there must be an error. Letters that only the data holds must be untrusted in every result.
A wrong oracle (without trim_blocks) must be found out, or the test itself is broken.
"""

import argparse
import functools
import json
import pathlib
import subprocess
import sys
import warnings

import jinja2
import jinja2.ext
import jinja2.sandbox

from chat_template_cases import USER_LETTERS, cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
USER_SET = set(USER_LETTERS + USER_LETTERS.upper() + USER_LETTERS.lower())


def environment(**changes):
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    options = {"trim_blocks": True, "lstrip_blocks": True, **changes}
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(extensions=[jinja2.ext.loopcontrols], **options)
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


@functools.lru_cache(maxsize=64)
def compiled(env, template):
    return env.from_string(template)


def oracle(env, case):
    """The text, or None where jinja2 raises, and why."""
    try:
        return compiled(env, case["template"]).render(**case["trusted_variables"], **case["variables"]), None
    except RecursionError:
        raise
    except Exception as e:  # whatever Python raises for a bad operation
        return None, f"{type(e).__name__}: {e}"


def untrusted_letters_trusted(reply):
    """A letter of the data's in a trusted span, if there is one."""
    data, begin = reply["text"].encode(), 0
    for end, trusted in reply["spans"]:
        if trusted:
            for c in data[begin:end].decode():
                if c in USER_SET:
                    return c
        begin = end
    return None


def verdict(case, expected, why, reply):
    """What is wrong with `reply`, or None."""
    if case.get("mutated") and reply.get("code") == "not supported":
        return None  # a name that jinja2 does not know either, where it never gets to
    if "'%' on a string is not supported" in reply.get("error", ""):
        return None
    if expected is None:
        return f"jinja2 raises {why}" if "text" in reply else None
    if "text" not in reply:
        return None if "a number is too large" in reply["error"] else f"jinja2 renders {expected!r}"
    if " object at 0x" in expected:
        return None  # an iterator that is printed: the text is an address
    if reply["text"] != expected:
        return f"jinja2 renders {expected!r}"
    letter = untrusted_letters_trusted(reply)
    return f"{letter!r} of the data is trusted" if letter else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/tests/chat_render")
    parser.add_argument("--templates", type=pathlib.Path, help="a folder of further *.jinja files")
    parser.add_argument("--show", type=int, default=5, help="print at most this many failures")
    args = parser.parse_args()

    warnings.simplefilter("ignore", SyntaxWarning)  # of the Python that jinja2 compiles to
    extra = sorted(args.templates.glob("*.jinja")) if args.templates else []
    all_cases = list(cases(args.count, args.seed, extra))
    lines = "".join(json.dumps(case) + "\n" for case in all_cases)
    run = subprocess.run([args.binary], input=lines, capture_output=True, text=True)
    replies = [json.loads(line) for line in run.stdout.split("\n")[:-1]]
    if run.returncode != 0 or len(replies) != len(all_cases):
        sys.exit(f"{args.binary} ended with {run.returncode} after {len(replies)} of {len(all_cases)}: {run.stderr}")

    right, wrong = environment(), environment(trim_blocks=False)
    failures = rendered = found_out = 0
    for i, (case, reply) in enumerate(zip(all_cases, replies)):
        expected, why = oracle(right, case)
        rendered += expected is not None
        if i < 200:
            found_out += verdict(case, *oracle(wrong, case), reply) is not None
        # A template that letters of the data's alphabet stand in says nothing about trust.
        if case.get("published"):
            reply.pop("spans", None)
            reply["spans"] = []
        problem = verdict(case, expected, why, reply)
        if problem is None:
            continue
        failures += 1
        if failures <= args.show:
            print(f"case {i}: {problem}\n  fathom: {reply}\n  {json.dumps(case, ensure_ascii=False)}\n")
    print(f"{len(all_cases)} templates, {rendered} of them rendered by jinja2, {failures} failures")
    if failures:
        sys.exit(1)
    if found_out == 0 or rendered < len(all_cases) // 3:
        sys.exit("the comparison compares too little: the wrong oracle passed, or most templates raise")


if __name__ == "__main__":
    main()
