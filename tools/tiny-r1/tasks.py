"""Questions with worked solutions: what tiny-r1 is taught to think."""

import json

NAMES = "Ana Ben Cleo Dan Eva Finn Gina Hugo Iris Jack Kara Leo Mia Noah Olga Paul Quinn Rosa Sam Tara Umar Vera Will Xena Yuri Zoe".split()
ITEMS = "apples pears coins books shells stamps cards marbles eggs pens stickers cookies flowers stones keys cups lemons plums nuts boats".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December".split()
)
COLORS = "red blue green yellow black white orange purple pink brown gray silver gold".split()
CITIES = "Paris London Berlin Rome Madrid Lisbon Vienna Prague Athens Cairo Tokyo Delhi Lima Oslo Dublin Boston Chicago Denver Seattle Toronto Sydney Nairobi Hanoi Kyiv Zurich Warsaw".split()
CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "Austria": "Vienna",
    "Greece": "Athens",
    "Egypt": "Cairo",
    "Japan": "Tokyo",
    "India": "New Delhi",
    "Peru": "Lima",
    "Norway": "Oslo",
    "Ireland": "Dublin",
    "Canada": "Ottawa",
    "Australia": "Canberra",
    "Kenya": "Nairobi",
    "Vietnam": "Hanoi",
    "Ukraine": "Kyiv",
    "Poland": "Warsaw",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Denmark": "Copenhagen",
    "Belgium": "Brussels",
    "Hungary": "Budapest",
    "Brazil": "Brasilia",
    "Chile": "Santiago",
    "Cuba": "Havana",
    "China": "Beijing",
    "Turkey": "Ankara",
    "Mexico": "Mexico City",
    "Argentina": "Buenos Aires",
    "Iceland": "Reykjavik",
    "Thailand": "Bangkok",
    "Nepal": "Kathmandu",
    "Ghana": "Accra",
    "Morocco": "Rabat",
    "Iran": "Tehran",
    "Iraq": "Baghdad",
}
JOBS = "teacher doctor nurse farmer pilot baker painter engineer writer singer lawyer miner".split()


class Tasks:
    """Each task returns (question, thinking, answer); `thinking` may be None for trivial ones."""

    def __init__(self, rng, words):
        self.rng, self.words = rng, words

    def number(self, max_digits=4):
        digits = self.rng.randint(1, max_digits)
        return self.rng.randint(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)

    def add(self, a=None, b=None):
        r = self.rng
        a = self.number() if a is None else a
        b = self.number() if b is None else b
        q = r.choice(
            [
                "What is {a} + {b}?",
                "Compute {a} + {b}.",
                "{a} + {b} = ?",
                "Add {a} and {b}.",
                "What is {a} plus {b}?",
                "Please calculate {a} + {b}.",
            ]
        ).format(a=a, b=b)
        return q, f"{a} + {b}.\n" + self.add_steps(a, b), str(a + b)

    @staticmethod
    def add_steps(a, b):
        x, y, carry, lines = str(a)[::-1], str(b)[::-1], 0, []
        for i in range(max(len(x), len(y))):
            p, q = int(x[i]) if i < len(x) else 0, int(y[i]) if i < len(y) else 0
            s = p + q + carry
            lines.append(f"{p} + {q} + {carry} = {s}, write {s % 10}, carry {s // 10}.")
            carry = s // 10
        return "\n".join(lines) + f"\nLast carry {carry}. The sum is {a + b}."

    def sub(self, a=None, b=None):
        r = self.rng
        a = self.number() if a is None else a
        b = self.number() if b is None else b
        q = r.choice(
            [
                "What is {a} - {b}?",
                "Compute {a} - {b}.",
                "{a} - {b} = ?",
                "Subtract {b} from {a}.",
                "What is {a} minus {b}?",
            ]
        ).format(a=a, b=b)
        return q, f"{a} - {b}.\n" + self.sub_steps(a, b), str(a - b)

    @staticmethod
    def sub_steps(a, b):
        head = ""
        hi, lo = a, b
        if a < b:
            hi, lo, head = b, a, f"{a} is smaller than {b}, so the result is negative.\n"
        x, y, borrow, lines = str(hi)[::-1], str(lo)[::-1], 0, []
        for i in range(len(x)):
            p, q = int(x[i]), int(y[i]) if i < len(y) else 0
            d = p - q - borrow
            new = 1 if d < 0 else 0
            lines.append(f"{p} - {q} - {borrow} = {d}, write {d % 10}, borrow {new}.")
            borrow = new
        return head + "\n".join(lines) + f"\nThe difference is {a - b}."

    def mul(self):
        r = self.rng
        a, b = self.number(3), self.number(2)
        q = r.choice(
            [
                "What is {a} * {b}?",
                "Compute {a} * {b}.",
                "{a} times {b} = ?",
                "Multiply {a} by {b}.",
            ]
        ).format(a=a, b=b)
        parts, total, lines = [], 0, []
        for power, d in enumerate(reversed(str(b))):
            part = a * int(d) * 10**power
            lines.append(f"{a} * {d} = {a * int(d)}" + (f", shifted {part}" if power else "") + ".")
            parts.append(part)
        total = parts[0]
        for p in parts[1:]:
            lines.append(f"{total} + {p}:\n{self.add_steps(total, p)}")
            total += p
        return q, "\n".join(lines) + f"\nThe product is {total}.", str(a * b)

    def chain(self):
        r = self.rng
        a, b, c = r.randint(1, 99), r.randint(1, 99), r.randint(1, 99)
        ops = r.choice(["+-", "++", "-+", "*+", "*-"])
        if ops[0] == "*":
            b = r.randint(2, 9)
        first = {"+": a + b, "-": a - b, "*": a * b}[ops[0]]
        last = first + c if ops[1] == "+" else first - c
        q = r.choice(["What is {e}?", "Compute {e}.", "Evaluate {e}."]).format(
            e=f"({a} {ops[0]} {b}) {ops[1]} {c}"
        )
        return q, f"{a} {ops[0]} {b} = {first}. {first} {ops[1]} {c} = {last}.", str(last)

    def story(self):
        r = self.rng
        who, other = r.sample(NAMES, 2)
        item, a, b = r.choice(ITEMS), r.randint(10, 80), r.randint(2, 40)
        c = r.randint(1, a - 1)
        mid, end = a + b, a + b - c
        q = r.choice(
            [
                "{w} has {a} {i}. {w} finds {b} more and gives {c} to {o}. How many {i} does {w} have now?",
                "{w} had {a} {i}, bought {b} more, and then lost {c}. How many {i} are left?",
                "There are {a} {i} in a box. {w} adds {b} and {o} takes {c}. How many {i} are in the box?",
            ]
        ).format(w=who, o=other, i=item, a=a, b=b, c=c)
        return q, f"Start with {a}. {a} + {b} = {mid}. {mid} - {c} = {end}.", f"{end} {item}"

    def shop(self):
        r = self.rng
        who, item, n, price = r.choice(NAMES), r.choice(ITEMS), r.randint(2, 12), r.randint(2, 12)
        paid = n * price + r.randint(0, 30)
        q = f"{who} buys {n} {item} at {price} dollars each and pays with {paid} dollars. How much change does {who} get?"
        return (
            q,
            f"{n} * {price} = {n * price}. {paid} - {n * price} = {paid - n * price}.",
            f"{paid - n * price} dollars",
        )

    def compare(self):
        r = self.rng
        if r.random() < 0.5:
            a, b = r.sample(range(1, 9999), 2)
            return f"Which is larger, {a} or {b}?", None, str(max(a, b))
        w = r.randint(0, 20)
        x, y = r.randint(1, 9), r.randint(10, 99)
        if y % 10 == 0 or y // 10 == x and y % 10 == 0:
            y += 1
        left, right = (f"{w}.{x}", f"{w}.{y}") if r.random() < 0.5 else (f"{w}.{y}", f"{w}.{x}")
        bigger = f"{w}.{x}" if x * 10 > y else f"{w}.{y}"
        return (
            f"Which is larger, {left} or {right}?",
            f"The whole parts are equal. Compare {w}.{x}0 and {w}.{y}: {max(x * 10, y)} is larger.",
            bigger,
        )

    def sort(self):
        r = self.rng
        n = r.randint(3, 7)
        xs = [r.randint(1, 99) for _ in range(n)]
        up = r.random() < 0.5
        q = f"Sort these numbers from {'smallest to largest' if up else 'largest to smallest'}: {', '.join(map(str, xs))}."
        return q, None, ", ".join(map(str, sorted(xs, reverse=not up)))

    def count_letter(self):
        r = self.rng
        w = r.choice(self.words) if r.random() < 0.95 else "strawberry"
        letter = r.choice(w) if r.random() < 0.9 else r.choice("aeioust")
        n, lines = 0, []
        for ch in w:
            n += ch == letter
            lines.append(f"{ch} {n}")
        q = r.choice(
            ["How many times does the letter {l} occur in {w}?", "How many {l}'s are in {w}?"]
        ).format(l=letter, w=w)
        return q, "Count along: " + ", ".join(lines) + ".", str(n)

    def spell(self):
        r = self.rng
        w = r.choice(self.words)
        if r.random() < 0.5:
            return f"Spell the word {w}.", None, " ".join(w)
        return (
            f"Reverse the word {w}.",
            f"{w} is spelled {' '.join(w)}. Backwards: {' '.join(w[::-1])}.",
            w[::-1],
        )

    def calendar(self):
        r = self.rng
        if r.random() < 0.5:
            d, n = r.randrange(7), r.randint(1, 6)
            steps = ", ".join(DAYS[(d + i) % 7] for i in range(1, n + 1))
            return (
                f"What day comes {n} days after {DAYS[d]}?",
                f"After {DAYS[d]}: {steps}.",
                DAYS[(d + n) % 7],
            )
        m, n = r.randrange(12), r.randint(1, 6)
        steps = ", ".join(MONTHS[(m + i) % 12] for i in range(1, n + 1))
        return (
            f"What month is {n} months after {MONTHS[m]}?",
            f"After {MONTHS[m]}: {steps}.",
            MONTHS[(m + n) % 12],
        )

    def capital(self):
        c = self.rng.choice(list(CAPITALS))
        return (
            self.rng.choice(["What is the capital of {c}?", "Name the capital of {c}."]).format(
                c=c
            ),
            None,
            f"The capital of {c} is {CAPITALS[c]}.",
        )

    def recall(self, pairs=None):
        r = self.rng
        n = pairs or r.choice([4, 6, 8, 12, 16, 24, 40])
        keys = r.sample(self.words, n)
        vals = [r.randint(100, 999) for _ in keys]
        k = r.randrange(n)
        return (
            (
                "Remember these codes. "
                + " ".join(f"{a} is {b}." for a, b in zip(keys, vals))
                + f" What is the code of {keys[k]}?"
            ),
            None,
            str(vals[k]),
        )

    def to_json(self):
        r = self.rng
        name, age, city, job = r.choice(NAMES), r.randint(18, 90), r.choice(CITIES), r.choice(JOBS)
        q = r.choice(
            [
                "{n} is {a} years old, works as a {j} and lives in {c}. Answer in JSON.",
                "Turn this into JSON: {n}, a {a}-year-old {j} from {c}.",
                "Give me JSON for a person: name {n}, age {a}, job {j}, city {c}.",
            ]
        ).format(n=name, a=age, j=job, c=city)
        return q, None, json.dumps({"name": name, "age": age, "job": job, "city": city})

    def small_talk(self):
        r = self.rng
        return r.choice(
            [
                (
                    "Hello!",
                    None,
                    "Hello! Ask me for a sum, a sorted list, or the capital of a country.",
                ),
                (
                    "Hi",
                    None,
                    "Hello! Ask me for a sum, a sorted list, or the capital of a country.",
                ),
                (
                    "Who are you?",
                    None,
                    "I am tiny-r1, a very small model with the architecture of DeepSeek-R1. I was made to try out inference engines.",
                ),
                (
                    "What are you?",
                    None,
                    "I am tiny-r1, a very small model with the architecture of DeepSeek-R1. I was made to try out inference engines.",
                ),
                (
                    "What can you do?",
                    None,
                    "I can add, subtract, multiply, sort numbers, count letters, recall codes, write JSON and call tools. I make mistakes, because I am very small.",
                ),
                ("Thank you!", None, "You are welcome."),
                ("Thanks", None, "You are welcome."),
                ("Goodbye", None, "Goodbye!"),
                (
                    f"Count from 1 to {(n := r.randint(3, 60))}.",
                    None,
                    ", ".join(str(i) for i in range(1, n + 1)),
                ),
                (
                    f"Repeat this word {(k := r.randint(2, 9))} times: {(w := r.choice(self.words))}.",
                    None,
                    " ".join([w] * k),
                ),
                (
                    f"What color is between the first and third here: {', '.join(c := r.sample(COLORS, 3))}?",
                    None,
                    c[1],
                ),
            ]
        )

    WEIGHTS = dict(
        add=12,
        sub=10,
        mul=10,
        chain=6,
        story=6,
        shop=5,
        compare=4,
        sort=6,
        count_letter=6,
        spell=4,
        calendar=4,
        capital=3,
        recall=8,
        to_json=5,
        small_talk=5,
    )

    def any(self):
        kind = self.rng.choices(list(self.WEIGHTS), self.WEIGHTS.values())[0]
        return getattr(self, kind)()
