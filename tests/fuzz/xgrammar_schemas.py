#!/usr/bin/env python3
"""Holds what a JSON schema takes against what xgrammar's own tests say of it.

    tests/fuzz/xgrammar_schemas.py [--binary build/tests/schema_takes]

Its source distribution, which tools/install_deps.sh fetches, has tests/python/test_json_schema_converter.py. That file's tests are
run here without xgrammar's Python package: a module of that name stands in, and what they would check is noted instead:
a schema, an instance, and whether it is accepted. A schema is compiled with any white space, as the server has it; so of those
that are checked with fixed white space, what is refused may be taken. Schemas that the server refuses are counted.
"""
import argparse
import importlib.util
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import types

from pydantic import BaseModel

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEAST = 250  # cases that are compared: fewer would mean that the tests were not found


class NotOurs(Exception):
    """A test that asks xgrammar for something else."""


class Anything:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *_, **__):
        raise NotOurs


class StandsIn(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        return getattr(Anything(), name)


def source():
    """The folder that the build unpacks xgrammar into, by the version that it names."""
    text = (ROOT / "cmake" / "xgrammar.cmake").read_text()
    version, digest = re.search(r"XGRAMMAR_VERSION (\S+)\)", text)[1], re.search(r"XGRAMMAR_SHA256 (\w{12})", text)[1]
    cache = os.environ.get("FATHOM_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "fathom")
    return pathlib.Path(cache) / f"xgrammar-{version}-{digest}" / "tests" / "python"


def load(folder):
    for name in ("xgrammar", "xgrammar.testing"):
        sys.modules[name] = StandsIn(name)
    spec = importlib.util.spec_from_file_location("their_tests", folder / "test_json_schema_converter.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["their_tests"] = module  # where pydantic looks for the types of annotations
    spec.loader.exec_module(module)
    return module


def arguments(test):
    """Of each of its runs, by pytest's marks."""
    runs = [{}]
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names = [n.strip() for n in mark.args[0].split(",")] if isinstance(mark.args[0], str) else list(mark.args[0])
        values = [v.values if type(v).__name__ == "ParameterSet" else (v,) if len(names) == 1 else v for v in mark.args[1]]
        runs = [{**run, **dict(zip(names, value))} for run, value in itertools.product(runs, values)]
    return runs


def collect(module):
    cases, left_out = [], 0

    def note(schema, instance, is_accepted=True, any_whitespace=True, **options):
        written = {key: options.get(key) for key in ("indent", "separators")}
        if isinstance(instance, BaseModel):
            instance = json.dumps(instance.model_dump(mode="json", round_trip=True), **written)
        elif not isinstance(instance, str):
            instance = json.dumps(instance, **written)
        cases.append({"schema": schema if isinstance(schema, str) else json.dumps(schema), "instance": instance,
                      "strict": options.get("strict_mode", True), "accepted": is_accepted, "any_whitespace": any_whitespace,
                      "test": test.__name__})

    module.check_schema_with_instance = note
    for name in [n for n in vars(module) if n.startswith("check_schema") and n != "check_schema_with_instance"]:
        setattr(module, name, lambda *_, **__: None)
    for test in [v for n, v in vars(module).items() if n.startswith("test_")]:
        for run in arguments(test):
            try:
                test(**run)
            except (NotOurs, TypeError, AssertionError):
                left_out += 1  # of other functions of xgrammar, or with pytest's fixtures
    return cases, left_out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=ROOT / "build" / "tests" / "schema_takes")
    args = parser.parse_args()
    folder = source()
    if not folder.exists():
        print("xgrammar's source distribution is not there: tools/install_deps.sh fetches it")
        return 1
    cases, left_out = collect(load(folder))
    lines = "".join(json.dumps({key: case[key] for key in ("schema", "strict", "instance")}) + "\n" for case in cases)
    answers = subprocess.run([args.binary], input=lines, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(answers) == len(cases)
    refused = compared = looser = closed = 0
    wrong = []
    for case, answer in zip(cases, answers):
        if answer.startswith("refused"):
            refused += 1
        elif answer == "taken" and not case["accepted"] and not case["any_whitespace"]:
            looser += 1
        elif case["strict"] and json.loads(case["schema"]) == {"type": "object"}:
            closed += 1  # xgrammar leaves it open; here strict forbids what nothing names
        else:
            compared += 1
            if (answer == "taken") != case["accepted"]:
                wrong.append((answer, case))
    for answer, case in wrong:
        print(f"{case['test']}: {answer}, and {'accepted' if case['accepted'] else 'not accepted'} there: "
              f"{case['instance'][:200]!r} of {case['schema'][:300]}")
    print(f"{compared} instances compared, {len(wrong)} differ; {looser} have white space that is fixed there, {closed} are "
          f"of strict objects without properties, {refused} are of schemas that are refused here, {left_out} runs of tests ask for something else")
    return int(bool(wrong) or compared < LEAST)


if __name__ == "__main__":
    sys.exit(main())
