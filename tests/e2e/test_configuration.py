"""Flags of `serve` in the YAML of --config FILE and in variables FATHOM_..., and what is said of those that cannot be taken."""

import os

import pytest
import requests

from conftest import MODEL, serving
from test_command_line import run


@pytest.fixture
def config(tmp_path):
    def write(text):
        (tmp_path / "fathom.yaml").write_text(text)
        return tmp_path / "fathom.yaml"

    return write


@pytest.mark.parametrize(
    "text, said",
    [
        ("port: 1\nport: 2\n", "port: it is there more than once"),
        ("max-model-len: 1k\nmax_model_len: 2k\n", "max_model_len: it is there more than once"),
        ("webui: true\nno-webui: true\n", "no-webui: it is there more than once"),
        ("served-model-name: {a: b}\n", "served-model-name: it takes no map"),
        ("port: {a: b}\n", "port: it takes no map"),
        ("speculative-config: {method: ngram, method: mtp}\n", "speculative-config: method is in its map more than once"),
        ("speculative-config: {[a]: b}\n", "speculative-config: a key of its map is not a word"),
        ("speculative-config: &a {method: *a}\n", "speculative-config: its maps and lists are nested more than 16 deep"),
        ("served-model-name: [a, {b: c}]\n", "served-model-name: its list holds more than words"),
        ("served-model-name: []\n", "served-model-name: the list is empty"),
        ("port: [1, 2]\n", "port: it takes one value, not a list"),
        ("enforce-eager: [true]\n", "enforce-eager: it takes one value, not a list"),
        ("port:\n", "port: it needs a value"),
        ("enforce-eager: sometimes\n", "enforce-eager: it is true or false, not sometimes"),
        ("prot: 1\n", "prot: there is no --prot; did you mean --port?"),
        ("enable-eplb: true\n", "enable-eplb: --enable-eplb: "),
        ("model: ''\n", "model: it is empty"),
        ("help: true\n", "help: the command line alone says it"),
        ("config: other.yaml\n", "config: the command line alone says it"),
    ],
)
def test_entries_that_cannot_be_taken_name_the_file_and_the_key(config, text, said):
    file = config(text)
    result = run("serve", "nowhere", "--config", str(file))
    assert result.returncode == 2 and result.stderr.startswith(f"fathom: {file}: {said}"), result.stderr


@pytest.mark.parametrize("text, said", [
    ("port: 99999\n", "port: Value 99999 not in range 0 to 65535"),
    ("device: gpu\n", "device: gpu not in {cpu,cuda}"),
    ("seed: 5\n", "seed: 5 is not 0"),
    ("tp: x\n", "tp: Value x not in range 1 to 1024"),
    ("allowed_origins: [http://a, b]\n", "allowed_origins: b is not an origin"),
])  # fmt: skip
def test_values_that_cannot_be_taken_name_the_file_and_the_key(config, text, said):
    file = config(text)
    result = run("serve", "nowhere", "--config", str(file))
    assert result.returncode == 2 and result.stderr.startswith(f"fathom serve: {file}: {said}"), result.stderr


@pytest.mark.parametrize("variable, value, said", [
    ("FATHOM_PORT", "99999", "Value 99999 not in range 0 to 65535"),
    ("FATHOM_TENSOR_PARALLEL_SIZE", "x", "Value x not in range 1 to 1024"),
    ("FATHOM_ENABLE_PREFIX_CACHING", "maybe", "it does not take such a value"),
    ("FATHOM_WEBUI", "maybe", "it does not take such a value"),
    ("FATHOM_NO_WEBUI", "maybe", "it does not take such a value"),
    ("FATHOM_TP", "x", "Value x not in range 1 to 1024"),
    ("FATHOM_GPU_MEMORY_UTILIZATION", "0.5", "0.5 is not 0.9"),
])  # fmt: skip
def test_values_that_cannot_be_taken_name_the_variable(variable, value, said):
    result = run("serve", "nowhere", env=os.environ | {variable: value})
    assert result.returncode == 2 and result.stderr.startswith(f"fathom serve: {variable}"), result.stderr
    assert said in result.stderr
    # The command line counts before the variable.
    result = run("serve", "nowhere", "--port", "99998", env=os.environ | {"FATHOM_PORT": "99999"})
    assert result.stderr.startswith("fathom serve: --port: Value 99998")


def test_variables_of_no_flag_are_warned_of():
    def said(**variables):
        result = run("serve", "nowhere", env=os.environ | variables)
        assert result.returncode == 1  # for there is no such folder
        *lines, last = result.stderr.splitlines()
        assert last == "fathom serve: there is no folder nowhere"
        return lines

    assert said(FATHOM_MAX_MODEL_LENGTH="5") == [
        "fathom serve: the variable FATHOM_MAX_MODEL_LENGTH says nothing here; did you mean FATHOM_MAX_MODEL_LEN?"]  # fmt: skip
    assert said(FATHOM_XYZZY_QUUX="5") == ["fathom serve: the variable FATHOM_XYZZY_QUUX says nothing here"]
    # What flags and the service file have, and what Kubernetes sets beside a service of this name.
    assert said(FATHOM_PORT="tcp://10.0.0.1:8000", FATHOM_SERVICE_HOST="10.0.0.1", FATHOM_PORT_8000_TCP_PROTO="tcp",
                FATHOM_ENFORCE_EAGER="true", FATHOM_FLAGS="", FATHOM_CONFIG="") == []  # fmt: skip


@pytest.mark.parametrize("one, other", [("FATHOM_WEBUI", "FATHOM_NO_WEBUI"), ("FATHOM_TENSOR_PARALLEL_SIZE", "FATHOM_TP")])
def test_two_variables_of_one_flag_are_refused(one, other):
    both = os.environ | {one: "1", other: "1"}
    result = run("serve", "nowhere", env=both)
    assert result.returncode == 2 and result.stderr == f"fathom: {one} and {other} say the same flag: keep one of them\n"
    said = run("serve", "nowhere", "--no-webui", "--tp", "1", env=both)  # the command line counts before both
    assert said.returncode == 1 and said.stderr == "fathom serve: there is no folder nowhere\n"


def test_every_name_of_a_flag_is_a_variable(monkeypatch):
    for name, value in (("FATHOM_NO_WEBUI", "true"), ("FATHOM_NO_ENABLE_PREFIX_CACHING", "1"), ("FATHOM_API_KEY", "k"),
                        ("FATHOM_OPEN_ROUTES", "/server_info")):  # fmt: skip
        monkeypatch.setenv(name, value)
    with serving() as server:
        assert requests.get(server.url, timeout=10, headers={"Authorization": "Bearer k"}).status_code == 404
        assert requests.get(f"{server.url}/server_info", timeout=10).status_code == 200
        ask = lambda: server.client(api_key="k").completions.create(model="tiny-r1", prompt=[7] * 200, max_tokens=1)
        assert [(u.prompt_tokens_details and u.prompt_tokens_details.cached_tokens) or 0 for u in (ask().usage, ask().usage)] == [0, 0]
    with serving("--webui") as server:
        assert requests.get(server.url, timeout=10, headers={"Authorization": "Bearer k"}).status_code == 200


def test_a_map_of_a_file_is_json(config):
    file = config("""
default-chat-template-kwargs:
  thinking: true
  tags: [{a: 1, b: -2.5, c: ~, "1": "1"}, yes, plain, 'no']
speculative-config:
  method: "ngram"
  num_speculative_tokens: 2
override-generation-config: {temperature: 0.25}
""")
    with serving("--config", str(file)) as server:
        info = requests.get(f"{server.url}/server_info", timeout=10).json()
        assert info["default_chat_template_kwargs"] == {"thinking": True, "tags": [{"a": 1, "b": -2.5, "c": None, "1": "1"}, True, "plain", "no"]}
        assert info["default_sampling_params"]["temperature"] == 0.25
    config("speculative-config: {method: ngram, num_speculative_tokens: '2'}\n")
    result = run("serve", str(MODEL), "--port", "0", "--config", str(file))
    assert result.returncode == 1 and "num_speculative_tokens must be a whole number" in result.stderr, result.stderr


def test_a_flag_that_says_nothing_takes_no_other_word():
    result = run("serve", "nowhere", "--enforce-eager=maybe")
    assert result.returncode == 2 and "a flag = maybe: it does not take such a value" in result.stderr


def test_an_empty_variable_is_none():
    result = run("serve", "nowhere", env=os.environ | {"FATHOM_PORT": "", "FATHOM_MAX_MODEL_LEN": ""})
    assert result.returncode == 1 and result.stderr == "fathom serve: there is no folder nowhere\n"
    result = run("serve", "nowhere", env=os.environ | {"FATHOM_API_KEY": ""})  # or a server would be open by mistake
    assert result.returncode == 1 and "FATHOM_API_KEY: the key is empty" in result.stderr


def test_model_of_a_file_gives_way_to_the_command_line(config):
    file = config("model: elsewhere\nserved-model-name: [a, b]\n")
    for arguments, folder in (([], "elsewhere"), (["nowhere"], "nowhere"), (["--allowed-origins", "http://a", "http://b"], "elsewhere")):
        result = run("serve", *arguments, "--config", str(file), env=os.environ | {"FATHOM_MODEL": "third"})
        assert result.returncode == 1 and result.stderr == f"fathom serve: there is no folder {folder}\n", result.stderr


def test_what_a_file_says_is_taken(config):
    file = config("enable-prefix-caching: false\nno-webui: yes\nserved-model-name: [a, b]\nopen-routes: [/health]\napi-key: [x, y]\n"
                  "speculative-config: '{\"method\": \"ngram\", \"num_speculative_tokens\": 2}'\n")  # fmt: skip
    with serving("--config", str(file)) as server:
        assert requests.get(server.url, timeout=10).status_code == 401  # the page is not there
        assert requests.get(f"{server.url}/health", timeout=10).status_code == 200
        for key in ("x", "y"):
            assert [m.id for m in server.client(api_key=key).models.list()] == ["a", "b"]
    with serving("--config", str(file), "--webui", "--open-routes", "/") as server:
        assert requests.get(server.url, timeout=10).status_code == 200
