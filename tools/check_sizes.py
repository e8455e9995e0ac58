#!/usr/bin/env python3
"""Lists the longest files and functions of src/, apps/, bench/, tests/ and tools/, and functions of
more than six parameters; fails where a file or a function is longer than it may be, a function takes
more parameters, or a line of a document is wider. Files of Python may be longer.

    tools/check_sizes.py            exit 1 and a line for each of them
    tools/check_sizes.py --all      every function near its limit
    tools/check_sizes.py --canary   checks the check
"""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMITS = {"src": 400, "bench": 450, "tests": 400}  # lines of a file of C++ or CUDA; apps/ is listed only
SOURCES = ("src", "apps", "bench", "tests", "tools")
SCREEN, KERNEL, PARAMETERS = 70, 150, 6
LISTED = 8
WIDTH = 100  # columns of a document
DOCUMENTS = ("docs", "src", "apps", "bench", "tests", "tools", "models")
# Files that are longer, with their length, and functions ("file function") that are longer or take more
# parameters, with theirs: they may not grow, and these lists only become shorter.
LONGER = {}
MORE_PARAMETERS = {}
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^[ \t]*#(?:\\\n|[^\n])*',
                      re.S | re.M)
ATTRIBUTE = re.compile(r"__launch_bounds__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)|__\w+__|alignas\([^()]*\)|\[\[[^\]]*\]\]")
NO_FUNCTION = re.compile(r"\b(namespace|struct|class|enum|union|if|for|while|switch|else|do|extern)\b|\)\s*\{|=\s*$")
NAME = re.compile(r"(operator[^\s(]+|operator\(\)|[\w~][\w:~]*)\s*\(")


def blanked(text):
    """Without comments, strings and the preprocessor's lines; every line stays where it is."""
    return NOT_CODE.sub(lambda m: "\n" * m.group().count("\n") or " ", text)


def parameters(header, begin):
    """Of the list that opens just before `begin`."""
    depth, count, seen = 1, 0, False
    for i in range(begin, len(header)):
        c = header[i]
        if c in "([{<":
            depth += 1
        elif c in ")]}" or (c == ">" and header[i - 1] != "-"):
            depth -= 1
            if depth == 0:
                break
        elif c == "," and depth == 1:
            count += 1
        seen = seen or not c.isspace()
    return count + 1 if seen else 0


def functions(text):
    """(name, line, lines, parameters, whether a kernel) of each function defined in `text`."""
    code, found, blocks, begin = blanked(text), [], [], 0  # blocks: None, or (name, ...) of a function
    for i, c in enumerate(code):
        if c == "{":
            in_function = any(blocks)
            header = code[begin:i]
            if not in_function and i and (code[i - 1].isalnum() or code[i - 1] in "_>"):
                blocks.append(None)  # an initialiser: a_{1}
                continue
            bare = re.sub(r"template\s*<.*?>\s*(?=[\w\[_])", "", ATTRIBUTE.sub("", header), flags=re.S)
            name = None if in_function or NO_FUNCTION.search(bare.rpartition(")")[2]) else NAME.search(bare)
            kernel = re.match(r"\s*(struct|class|enum|union|namespace|extern)\b", bare)
            if name and not kernel:
                line = code.count("\n", 0, begin + len(header) - len(header.lstrip())) + 1
                blocks.append((name.group(1), line, parameters(bare, name.end()), "__global__" in header))
            else:
                blocks.append(None)
            begin = i + 1
        elif c == "}" and blocks:
            if block := blocks.pop():
                name, line, count, is_kernel = block
                found.append((name, line, code.count("\n", 0, i) + 2 - line, count, is_kernel))
            if not blocks or not (code[i + 1:i + 2] in (",", ")", ";") or code[i + 1:i + 3] in (" {", " :")):
                begin = i + 1
        elif c == ";" or (c == ":" and code[max(0, i - 9):i].split()[-1:] in (["public"], ["private"], ["protected"])):
            begin = i + 1
    return found


def functions_of_python(text):
    """The same of a file of Python; those within others are found too."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(f.name, f.lineno, f.end_lineno + 1 - f.lineno, len(f.args.posonlyargs + f.args.args + f.args.kwonlyargs), False)
            for f in ast.walk(ast.parse(text)) if isinstance(f, kinds)]


def canary():
    text = """// f(a, b) {
template <int N, class T>
__global__ void __launch_bounds__(Warps(N) * 32) Kernel(const T* a, std::pair<int, int> b) {
  if (a) {
    Call([&](int x) { return "}"; });
  }
}
class A {
 public:
  A(int a, int b) : a_{a}, b_(b) {}
  int get() const { return a_; }
};
constexpr int kTable[] = {1, 2};
int Seven(int a, int b, int c, int d, int e, int f, int g) {
  return a;
}
"""
    expected = [("Kernel", 2, 6, 2, True), ("A", 10, 1, 2, False), ("get", 11, 1, 0, False), ("Seven", 14, 3, 7, False)]
    if functions(text) != expected:
        sys.exit(f"the check of sizes is broken: it found {functions(text)}")
    python = "class A:\n  def f(self, a, *, b=1):\n    def g(): pass\n\n    return 1\nasync def h(): pass\n"
    found = sorted(functions_of_python(python))
    if found != [("f", 2, 4, 3, False), ("g", 3, 1, 0, False), ("h", 6, 1, 0, False)]:
        sys.exit(f"the check of sizes is broken: in Python it found {found}")
    if too_long({"src/a.cc": 400, "bench/b.cu": 450, "apps/c.cc": 999, "tests/d.py": 999}, {}) or not too_long({"src/a.cc": 401}, {}) \
            or not too_long({"tests/a.cc": 401}, {}):
        sys.exit("the check of sizes is broken: limits")
    if too_long({"src/a.cc": 410}, {"src/a.cc": 410}) or not too_long({"src/a.cc": 411}, {"src/a.cc": 410}):
        sys.exit("the check of sizes is broken: exceptions")
    full = "| " + "\u2500" * 96 + " |"
    if too_wide("a.md", full) or too_wide("a.md", "x" * 101) or len(too_wide("a.md", f"{full}\n{full}.\n")) != 1:
        sys.exit("the check of sizes is broken: documents")
    for allowed, lines, count, is_kernel in ((True, 70, 6, False), (False, 71, 0, False), (True, 150, 6, True), (False, 151, 0, True),
                                             (False, 1, 7, False), (False, 1, 7, True)):
        if allowed == bool(beyond([("src/a.cc", "F", 1, lines, count, is_kernel)], {}, {})):
            sys.exit(f"the check of sizes is broken: {lines} lines, {count} parameters")
    tolerated = ({"src/a.cc F": 80}, {"src/a.cc F": 8})
    if beyond([("src/a.cc", "F", 1, 80, 8, False)], *tolerated) or len(beyond([("src/a.cc", "F", 1, 81, 9, False)], *tolerated)) != 2:
        sys.exit("the check of sizes is broken: exceptions of functions")


def too_wide(name, text):
    """Lines of a document; a link or another word that fills a line alone cannot be broken."""
    return [f"{name}:{number}: {len(line)} columns, at most {WIDTH} are allowed: break the line, or make a list of a table"
            for number, line in enumerate(text.splitlines(), 1) if len(line) > WIDTH and " " in line.strip()]


def too_long(files, longer):
    of_folder = lambda name: sys.maxsize if name.endswith(".py") else LIMITS.get(name.split("/")[0], sys.maxsize)
    limits = {name: longer.get(name, of_folder(name)) for name in files}
    return [f"{name}: {lines} lines, at most {limits[name]} are allowed: split it" for name, lines in files.items()
            if lines > limits[name]]


def beyond(found, longer, more_parameters):
    """A line for each function that is longer than it may be, or takes more parameters."""
    problems = []
    for name, function, line, lines, count, is_kernel in found:
        most = longer.get(f"{name} {function}", KERNEL if is_kernel else SCREEN)
        if lines > most:
            problems.append(f"{name}:{line}: {function} has {lines} lines, at most {most} are allowed: split it")
        most = more_parameters.get(f"{name} {function}", PARAMETERS)
        if count > most:
            problems.append(f"{name}:{line}: {function} takes {count} parameters, at most {most} are allowed: give it a struct")
    return problems


def main():
    if "--canary" in sys.argv:
        return canary()
    texts = {str(p.relative_to(ROOT)): p.read_text() for top in SOURCES for p in (ROOT / top).rglob("*")
             if p.suffix in (".h", ".cc", ".cu", ".cuh", ".py")}
    files = {name: text.count("\n") for name, text in texts.items()}
    all_functions = [(name, *f) for name, text in texts.items()
                     for f in (functions_of_python if name.endswith(".py") else functions)(text)]
    print("longest files:", *(f"  {lines:4} {name}" for name, lines in sorted(files.items(), key=lambda f: -f[1])[:LISTED]), sep="\n")
    listed = None if "--all" in sys.argv else LISTED
    for what, key, limit, is_kernel in (("longest functions", 3, SCREEN, False), ("longest kernels", 3, KERNEL, True),
                                        ("most parameters", 4, PARAMETERS, None)):
        these = sorted((f for f in all_functions if is_kernel in (None, f[5])), key=lambda f: -f[key])
        if listed is None:
            these = these[:sum(f[key] > 0.8 * limit for f in these)]
        print(f"{what} (at most {limit}):", *(f"  {f[key]:4} {f[0]}:{f[2]} {f[1]}" for f in these[:listed]), sep="\n")
    for name, lines in LONGER.items():
        if files.get(name, 0) < lines:
            print(f"{name}: {files.get(name, 'gone')}, no longer {lines}: say so in LONGER of tools/check_sizes.py")
    parameters_of = {f"{f[0]} {f[1]}": f[4] for f in all_functions}
    for name, count in MORE_PARAMETERS.items():
        if parameters_of.get(name, 0) < count:
            print(f"{name}: no longer {count} parameters: say so in MORE_PARAMETERS of tools/check_sizes.py")
    documents = sorted([*ROOT.glob("*.md"), *(p for top in DOCUMENTS for p in (ROOT / top).rglob("*.md"))])
    wide = [line for p in documents for line in too_wide(str(p.relative_to(ROOT)), p.read_text())]
    if problems := too_long(files, LONGER) + beyond(all_functions, LONGER, MORE_PARAMETERS) + wide:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
