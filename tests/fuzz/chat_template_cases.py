"""Random chat templates, and data and conversations to render with them."""

import json
import pathlib
import random

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of the data, never of a template. Their case mappings are one to one.
USER_LETTERS = "äÉøжЛяΩδ日本🙂｜"
DATA_PER_TEMPLATE = 3  # compiling a template is what takes Python's time


class Templates:
    """Random templates. Expressions are made by type, so that most of them evaluate."""

    def __init__(self, rng):
        self.rng = rng
        self.depth = 0
        self.loops = 0
        self.in_macro = False
        self.macros = []
        self.locals = []  # (name, type) of what is set
        self.names = 0

    def pick(self, *options):
        return self.rng.choice(options)

    def maybe(self, chance):
        return self.rng.random() < chance

    # --- expressions ---

    def literal(self):
        text = "".join(self.rng.choice("abcABxyz019 .,-_<>|{}%#/&\t") for _ in range(self.rng.randrange(7)))
        if self.maybe(0.3):
            text += self.pick("\\n", "\\t", "\\\\", "\\x41", "\\u00f1", "\\d", "\\101", "{{", "%}", "</think>")
        quote = self.pick("'", '"')
        return quote + text + (self.pick("\\" + quote, "") if self.maybe(0.2) else "") + quote

    def of(self, kind, depth):
        if depth <= 0 or self.maybe(0.15):
            return self.leaf(kind)
        return getattr(self, kind)(depth - 1)

    def leaf(self, kind):
        known = [name for name, its in self.locals if its == kind]
        if known and self.maybe(0.4):
            return self.rng.choice(known)
        if self.loops and kind in ("integer", "boolean") and self.maybe(0.3):
            return self.pick("loop.index", "loop.index0", "loop.length", "loop.revindex", "loop.revindex0") \
                if kind == "integer" else self.pick("loop.first", "loop.last")
        return {
            "string": lambda: self.pick("s", "t", "d.name", "d['name']", "messages[0].content", self.literal()),
            "integer": lambda: self.pick("n", "m", "xs[0]", "d.count", str(self.rng.randrange(12))),
            "real": lambda: self.pick("f", "g", "1.5", "0.25", "2e3", "1e-7", "3.0"),
            "boolean": lambda: self.pick("yes", "no", "true", "false", "True", "False"),
            "words": lambda: self.pick("ws", "['a', 'B', 'c']", "[s, t]", "[]", "d.tags"),
            "numbers": lambda: self.pick("xs", "[3, 1, 2]", "[n, m]", "[]", "range(4)|list", "(1, 2, 2)"),
            "records": lambda: self.pick("messages", "tools", "rows"),
            "mapping": lambda: self.pick("d", "messages[0]", "{'a': 1, 'b': s}", "{}", "dict(k=n)"),
            "odd": lambda: self.pick("none", "nope", "None", "d.nope", "xs[99]", "nope.x", "rows"),
        }[kind]()

    def anything(self, depth):
        return self.of(self.pick("string", "integer", "real", "boolean", "words", "numbers", "mapping", "odd"), depth)

    def odd(self, depth):
        return self.leaf("odd")

    def string(self, d):
        rng, of = self.rng, self.of
        return rng.choice([
            lambda: f"{of('string', d)} + {of('string', d)}",
            lambda: f"{self.paren(self.anything(d))} ~ {self.paren(self.anything(d))}",
            lambda: f"{of('string', d)}|{self.pick('upper', 'lower', 'title', 'capitalize', 'trim', 'string', 'reverse')}",
            lambda: f"{self.paren(of('string', d))}.{self.pick('upper', 'lower', 'title', 'capitalize', 'strip', 'lstrip', 'rstrip')}()",
            lambda: f"{self.paren(of('string', d))}.{self.pick('strip', 'lstrip', 'rstrip', 'removeprefix', 'removesuffix')}({self.literal()})",
            lambda: f"{self.paren(of('string', d))}|replace({self.literal()}, {of('string', d)})",
            lambda: f"{self.paren(of('string', d))}.replace({self.literal()}, {self.literal()}{self.pick('', ', 1', ', -1', ', 0')})",
            lambda: f"{self.paren(of('string', d))}[{self.slice()}]",
            lambda: f"{self.paren(of('string', d))}[{rng.randrange(-3, 4)}]",
            lambda: f"{of('string', d)}|{self.pick('first', 'last')}",
            lambda: f"{self.paren(of(self.pick('words', 'numbers'), d))}|join{self.pick('', '(%s)' % self.literal(), '(d=%s)' % self.leaf('string'))}",
            lambda: f"{self.leaf('string')}.join({of('words', d)})",
            lambda: f"{self.paren(self.anything(d))}|tojson{self.pick('', '', '(indent=2)', '(ensure_ascii=true)', '(sort_keys=true)', '(indent=0)')}",
            lambda: f"{self.paren(self.anything(d))}|string",
            lambda: f"{self.paren(of('string', d))}|indent{self.pick('', '(2)', '(2, true)', '(width=3, blank=true)')}",
            lambda: f"{self.paren(of('odd', d))}|default({of('string', d)}{self.pick('', ', true')})",
            lambda: f"({of('string', d)} if {of('boolean', d)} else {of('string', d)})",
            lambda: f"({of('string', d)} if {of('boolean', d)})",
            lambda: f"{self.paren(of('string', d))} * {rng.randrange(-1, 4)}",
            lambda: f"({of('string', d)} {self.pick('or', 'and')} {of('string', d)})",
            lambda: f"{self.paren(of('string', d))}.{self.pick('split', 'rsplit', 'partition', 'rpartition')}({self.pick(repr('a'), repr(' '), repr('ж'[:0] + ', '))})[{rng.randrange(-1, 2)}]",
            lambda: f"{self.paren(of('mapping', d))}.get({self.pick(repr('name'), repr('a'), repr('zz'))}, {self.literal()})",
            lambda: f"{self.rng.choice(self.macros)}({self.arguments(d)})" if self.macros else self.leaf("string"),
            lambda: f"messages|map(attribute='{self.pick('role', 'content', 'nope')}')|join('/')",
        ])()

    def integer(self, d):
        of = self.of
        return self.rng.choice([
            lambda: f"{of('integer', d)} {self.pick('+', '-', '*', '//', '%')} {of('integer', d)}",
            lambda: f"({of('integer', d)}) ** {self.rng.randrange(4)}",
            lambda: f"-{self.paren(of('integer', d))}",
            lambda: f"+{self.paren(of('boolean', d))}",
            lambda: f"{self.paren(of(self.pick('string', 'words', 'numbers', 'mapping'), d))}|{self.pick('length', 'count')}",
            lambda: f"{self.paren(of(self.pick('string', 'real', 'boolean', 'integer'), d))}|int{self.pick('', '(7)', '(default=3)')}",
            lambda: f"{self.paren(of('integer', d))}|abs",
            lambda: f"{self.paren(of('numbers', d))}|{self.pick('sum', 'min', 'max', 'first', 'last')}",
            lambda: f"{self.paren(of('string', d))}.{self.pick('find', 'rfind', 'count')}({self.literal()})",
            lambda: f"({of('integer', d)} if {of('boolean', d)} else {of('integer', d)})",
            lambda: f"{self.paren(of('numbers', d))}[{self.rng.randrange(-3, 4)}]",
            lambda: f"{self.paren(of('numbers', d))}.count({of('integer', d)})",
        ])()

    def real(self, d):
        of = self.of
        return self.rng.choice([
            lambda: f"{of('integer', d)} / {of('integer', d)}",
            lambda: f"{of('real', d)} {self.pick('+', '-', '*', '/', '//', '%')} {of(self.pick('real', 'integer'), d)}",
            lambda: f"{self.paren(of('real', d))}|round{self.pick('', '(1)', '(2)', '(0, %r)' % self.pick('ceil', 'floor'))}",
            lambda: f"{self.paren(of(self.pick('string', 'integer'), d))}|float",
            lambda: f"-{self.paren(of('real', d))}",
        ])()

    def boolean(self, d):
        of = self.of
        same = self.pick("string", "integer", "real", "words", "numbers")
        return self.rng.choice([
            lambda: f"{of(same, d)} {self.pick('==', '!=', '<', '<=', '>', '>=')} {of(same, d)}",
            lambda: f"{of('integer', d)} {self.pick('<', '<=')} {of('integer', d)} {self.pick('<', '==')} {of('integer', d)}",
            lambda: f"{self.paren(self.anything(d))} {self.pick('==', '!=')} {self.paren(self.anything(d))}",
            lambda: f"{of('string', d)} {self.pick('in', 'not in')} {of(self.pick('string', 'words', 'mapping'), d)}",
            lambda: f"{of('integer', d)} {self.pick('in', 'not in')} {of('numbers', d)}",
            lambda: f"not {self.paren(self.anything(d))}",
            lambda: f"({of('boolean', d)} {self.pick('and', 'or')} {of('boolean', d)})",
            lambda: f"{self.paren(self.anything(d))} is {self.pick('', 'not ')}" + self.pick(
                "defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer",
                "float", "boolean", "true", "false", "in [1, 2]", "sameas none", "equalto(1)"),
            lambda: f"{self.paren(of('integer', d))} is {self.pick('odd', 'even', 'divisibleby 3', 'eq 3', 'gt(2)', 'le 4')}",
            lambda: f"{self.paren(of('string', d))}.{self.pick('startswith', 'endswith')}({self.pick(self.literal(), '(%s, %s)' % (self.literal(), self.literal()))})",
            lambda: f"{self.paren(of('string', d))}.{self.pick('isdigit', 'isspace', 'isupper', 'islower', 'isalpha')}()",
        ])()

    def words(self, d):
        of = self.of
        return self.rng.choice([
            lambda: f"{self.paren(of('string', d))}.{self.pick('split', 'rsplit')}({self.pick('', repr(' '), repr('a'), repr(', ') + ', 1', 'none, 2', 'maxsplit=1')})",
            lambda: f"{self.paren(of('string', d))}.splitlines()",
            lambda: f"{self.paren(of('words', d))} + {self.paren(of('words', d))}",
            lambda: f"{self.paren(of('words', d))}[{self.slice()}]",
            lambda: f"{self.paren(of('words', d))}|{self.pick('sort', 'sort(reverse=true)', 'sort(case_sensitive=true)', 'unique|list', 'reverse|list', 'list')}",
            lambda: f"{self.paren(of('words', d))}|map({self.pick(repr('upper'), repr('trim'), repr('string'))})|list",
            lambda: f"{self.paren(of('words', d))}|{self.pick('select', 'reject')}({self.pick('', repr('string'), repr('in') + ', s')})|list",
            lambda: f"{self.paren(of('mapping', d))}|list",
            lambda: f"{self.paren(of('mapping', d))}.keys()|list",
            lambda: f"{self.paren(of('records', d))}|map(attribute='{self.pick('role', 'k', 'function.name')}')|list",
            lambda: f"{self.paren(of('string', d))}|list",
            lambda: f"{self.paren(of('records', d))}|{self.pick('selectattr', 'rejectattr')}('{self.pick('role', 'k')}'{self.pick('', ', ' + repr('equalto') + ', ' + repr('user'), ', ' + repr('defined'))})|map(attribute='role')|list",
        ])()

    def numbers(self, d):
        of = self.of
        return self.rng.choice([
            lambda: f"range({self.rng.randrange(5)}, {self.rng.randrange(9)}, {self.pick(1, 2, -1, 3)})|list",
            lambda: f"[{of('integer', d)}, {of('integer', d)}]",
            lambda: f"{self.paren(of('numbers', d))}[{self.slice()}]",
            lambda: f"{self.paren(of('numbers', d))}|{self.pick('sort', 'sort(reverse=true)', 'unique|list', 'reverse|list', 'list')}",
            lambda: f"{self.paren(of('numbers', d))}|{self.pick('select', 'reject')}({self.pick(repr('odd'), repr('gt') + ', 2', repr('in') + ', xs')})|list",
            lambda: f"[{of('integer', d)}] * {self.rng.randrange(3)}",
            lambda: f"({of('integer', d)},)",
        ])()

    def records(self, d):
        return self.leaf("records")

    def mapping(self, d):
        of = self.of
        return self.rng.choice([
            lambda: "{" + f"{self.literal()}: {self.anything(d)}, 'k': {of('string', d)}" + self.pick("", ",") + "}",
            lambda: "{1: " + of("string", d) + ", 'x': " + of("words", d) + "}",
            lambda: f"dict(a={of('string', d)}, b={of('integer', d)})",
            lambda: f"dict({self.leaf('mapping')}, z={of('string', d)})",
            lambda: f"({of('mapping', d)} if {of('boolean', d)} else {of('mapping', d)})",
        ])()

    def paren(self, expression):
        simple = expression.replace("_", "a").isalnum() and not expression[0].isdigit()
        return expression if simple and self.maybe(0.7) else f"({expression})"

    def slice(self):
        part = lambda: self.pick("", "", str(self.rng.randrange(-4, 6)))
        return f"{part()}:{part()}" + self.pick("", "", f":{self.pick('', 2, -1, -2)}")

    def arguments(self, d):
        given = [self.of("string", d - 1) for _ in range(self.rng.randrange(3))]
        if self.maybe(0.3):
            given.append(f"q={self.of('integer', d - 1)}")
        return ", ".join(given)

    # --- statements ---

    def tag(self, text):
        return "{%" + self.pick("", "", "-", "+") + f" {text} " + self.pick("", "", "-", "") + "%}"

    def show(self, expression):
        return "{{" + self.pick("", "", "-") + f" {expression} " + self.pick("", "", "-") + "}}"

    def text(self):
        return "".join(self.pick(" ", "  ", "\n", "\n", "a", "b.", "<x>", "\t", "{ ", "}", "%", "\n  ", "#")
                       for _ in range(self.rng.randrange(5)))

    def body(self, size):
        kept = list(self.locals)
        parts = [self.statement() for _ in range(self.rng.randrange(1, size + 1))]
        self.locals = kept
        return self.text() + self.text().join(parts) + self.text()

    def statement(self):
        self.depth += 1
        try:
            kinds = [self.print, self.print, self.print, self.assign, self.comment]
            if self.depth < 4:
                kinds += [self.if_, self.if_, self.for_, self.for_, self.block_set, self.macro, self.with_,
                          self.namespace, self.filter_block, self.raw, self.call]
            if self.loops:
                kinds.append(self.jump)
            return self.rng.choice(kinds)()
        finally:
            self.depth -= 1

    def print(self):
        kind = self.pick("string", "string", "integer", "real", "boolean", "words", "numbers", "mapping", "odd")
        return self.show(self.of(kind, 3))

    def fresh(self):
        self.names += 1
        return f"v{self.names}"

    def assign(self):
        kind = self.pick("string", "integer", "words", "numbers", "boolean", "mapping")
        known = [name for name, its in self.locals if its == kind]
        if known and self.maybe(0.4):
            # Read first: a name that a block around sets, and has not read, is undefined to jinja2
            # in the blocks within until then, whatever it was before.
            name = self.rng.choice(known)
            return self.show(name) + self.tag(f"set {name} = {self.of(kind, 2)}")
        names = [self.fresh()]
        statement = self.of(kind, 2)
        if self.maybe(0.15):
            names.append(self.fresh())
            statement += f", {self.of('string', 1)}"
        self.locals += zip(names, (kind, "string"))
        return self.tag(f"set {', '.join(names)} = {statement}")

    def comment(self):
        return "{#" + self.pick("", "-") + " note " + self.pick("", "{{ x }}", "\n") + self.pick("", "-") + "#}"

    def raw(self):
        return self.tag("raw").replace("+", "") + self.text() + "{{ x }}{% y" + self.tag("endraw")

    def if_(self):
        text = self.tag(f"if {self.of('boolean', 2)}") + self.body(2)
        while self.maybe(0.3):
            text += self.tag(f"elif {self.anything(1)}") + self.body(2)
        if self.maybe(0.5):
            text += self.tag("else") + self.body(2)
        return text + self.tag("endif")

    def for_(self):
        kind, item = self.pick(("words", "string"), ("numbers", "integer"), ("records", "mapping"))
        if self.maybe(0.25):
            target, source, new = "k, v", f"{self.paren(self.of('mapping', 1))}.items()", [("k", "string")]
        else:
            name = self.pick("x", "y")
            target, source, new = name, self.of(kind, 2), [(name, item)]
        condition = f" if {self.of('boolean', 1)}" if self.maybe(0.2) and not self.loops else ""
        kept, self.locals = self.locals, self.locals + new
        self.loops += 1
        body = self.body(3)
        if self.maybe(0.2):
            body += self.show(self.pick("loop.previtem", "loop.nextitem|default('-')", "loop.cycle('a', 'b')",
                                        "loop.changed(loop.index // 2)", "loop.last"))
        self.loops -= 1
        self.locals = kept
        text = self.tag(f"for {target} in {source}{condition}") + body
        if self.maybe(0.3):
            outer, self.loops = self.loops, 0
            text += self.tag("else") + self.body(1)
            self.loops = outer
        return text + self.tag("endfor")

    def jump(self):
        return self.tag(f"if {self.of('boolean', 1)}") + self.tag(self.pick("break", "continue")) + self.tag("endif")

    def block_set(self):
        loops, self.loops = self.loops, 0  # jinja2 leaves a buffer behind when a loop is left from within
        name = self.fresh()
        text = self.tag(f"set {name}{self.pick('', ' | upper', ' | trim')}") + self.body(2) + self.tag("endset")
        self.loops = loops
        self.locals.append((name, "string"))
        return text

    def macro(self):
        name = f"mac{len(self.macros)}"
        loops, self.loops = self.loops, 0
        kept, self.locals = self.locals, self.locals + [("p", "string"), ("q", "integer")]
        macros, self.macros = self.macros, []  # no recursion
        body = self.body(2)
        self.macros = macros
        self.locals, self.loops = kept, loops
        if self.depth == 1:
            self.macros = self.macros + [name]
        return (self.tag(f"macro {name}(p={self.literal()}, q={self.rng.randrange(5)})") + body + self.tag("endmacro")
                + self.show(f"{name}({self.arguments(2)})"))

    def call(self):
        name, loops = f"wrap{self.rng.randrange(100)}", self.loops
        self.loops = 0
        text = (self.tag(f"macro {name}(p)") + "[" + self.show("caller('z')") + self.show("p") + "]" +
                self.tag("endmacro") + self.tag(f"call(c) {name}({self.of('string', 1)})") + self.show("c") +
                self.body(1) + self.tag("endcall"))
        self.loops = loops
        return text

    def with_(self):
        name, value = self.fresh(), self.of("string", 2)
        kept, self.locals = self.locals, self.locals + [(name, "string")]
        text = self.tag(f"with {name} = {value}") + self.body(2) + self.tag("endwith")
        self.locals = kept
        return text

    def filter_block(self):
        loops, self.loops = self.loops, 0
        text = self.tag(f"filter {self.pick('upper', 'trim', 'replace(%s, %s)' % (self.literal(), self.literal()))}")
        text += self.body(2) + self.tag("endfilter")
        self.loops = loops
        return text

    def namespace(self):
        return (self.tag("set ns = namespace(a=0, b='')") +
                self.tag(f"for i in {self.of('numbers', 1)}") +
                self.tag(f"set ns.a = ns.a + {self.pick('i', '1')}") +
                self.tag(f"set ns.b = {self.of('string', 1)} ~ ns.b[:20]") + self.tag("endfor") +
                self.show("ns.a") + self.show("ns.b"))


class Data:
    def __init__(self, rng):
        self.rng = rng

    def string(self):
        letters = USER_LETTERS + "abAB  ,.<>/'\"\\\n\t\r\u2028\u00a0019-_{}"
        text = "".join(self.rng.choice(letters) for _ in range(self.rng.randrange(9)))
        extra = ["", "", "", "</think>", "<｜User｜>", " 12 ", "3.5", "a, b"]
        return text + self.rng.choice(extra)

    def number(self):
        return self.rng.choice([0, 1, 2, 3, -1, 7, 10**6, -5])

    def real(self):
        return self.rng.choice([0.0, 1.0, -2.5, 0.1, 1e16, 1.5e-5, 123456.789, 1e22, 3.141592653589793, -0.0])

    def value(self, depth):
        kinds = [self.string, self.number, self.real, lambda: None, lambda: True, lambda: False]
        if depth > 0:
            kinds += [lambda: [self.value(depth - 1) for _ in range(self.rng.randrange(3))],
                      lambda: {self.string(): self.value(depth - 1) for _ in range(self.rng.randrange(3))}]
        return self.rng.choice(kinds)()

    def variables(self):
        strings = lambda count: [self.string() for _ in range(self.rng.randrange(count))]
        return {
            "s": self.string(), "t": self.string(), "n": self.number(), "m": self.number(), "f": self.real(),
            "g": self.real(), "yes": True, "no": False, "ws": strings(5),
            "xs": [self.number() for _ in range(self.rng.randrange(5))],
            "d": {"name": self.string(), "count": self.number(), "tags": strings(4), "more": self.value(3)},
            "rows": [{"k": self.value(1)} for _ in range(self.rng.randrange(4))],
            "messages": self.messages(),
            "tools": [{"type": "function", "function": {"name": self.string(), "parameters": self.value(3)}}
                      for _ in range(self.rng.randrange(3))],
        }

    def messages(self):
        return [{"role": self.rng.choice(["user", "assistant", "system"]), "content": self.string()}
                for _ in range(self.rng.randrange(1, 5))]

    def conversation(self):
        """What a client sends: mostly well-formed."""
        messages = []
        for _ in range(self.rng.randrange(1, 7)):
            role = self.rng.choice(["system", "user", "user", "assistant", "assistant", "tool"])
            message = {"role": role, "content": self.string()}
            if role == "assistant" and self.rng.random() < 0.4:
                message["tool_calls"] = [{"type": "function", "function": {
                    "name": self.string(), "arguments": self.rng.choice([self.string(), "{}"])}}
                    for _ in range(self.rng.randrange(1, 3))]
                message["content"] = self.rng.choice([None, "", self.string()])
            if role == "assistant" and self.rng.random() < 0.1:
                message["prefix"] = True
            messages.append(message)
        variables = {"messages": messages, "add_generation_prompt": self.rng.random() < 0.7}
        if self.rng.random() < 0.5:
            variables["thinking"] = self.rng.random() < 0.5
        if self.rng.random() < 0.4:
            variables["tools"] = [{"type": "function", "function": {
                "name": self.string(), "description": self.string(), "parameters": self.value(3)}}
                for _ in range(self.rng.randrange(3))]
        return variables


def mutated(template, rng):
    """A template with a few of its characters lost, doubled or strayed."""
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(template) + 1)
        end = min(len(template), at + rng.randrange(1, 4))
        template = template[:at] + rng.choice(["", template[at:end] * 2, rng.choice("{}%#-+()[]|.,:'\"= \n\\")]) + template[end:]
    return template


def cases(count, seed, extra_templates):
    for i in range(count):
        if i % DATA_PER_TEMPLATE == 0:
            rng = random.Random(f"template {seed}/{i}")
            template = Templates(rng).body(3)
            strayed = rng.random() < 0.1
            if strayed:
                template = mutated(template, rng)
        rng = random.Random(f"data {seed}/{i}")
        yield {"template": template, "variables": Data(rng).variables(), "trusted_variables": {}, "mutated": strayed}
    config = json.loads((ROOT / "models/tiny-r1/tokenizer_config.json").read_text())
    tokens = {name: config[name] for name in ("bos_token", "eos_token")}
    templates = [config["chat_template"]] + [path.read_text() for path in extra_templates]
    for template in templates:
        for i in range(max(count // 10, 1)):
            rng = random.Random(f"conversation {seed}/{i}")
            yield {"template": template, "variables": Data(rng).conversation(), "trusted_variables": tokens,
                   "published": True}
