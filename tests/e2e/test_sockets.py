"""What clients connect by: TLS, and sockets in the file system."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time

import pytest
import requests
from conftest import BINARY, MODEL, eventually, serving

CHAT = "/v1/chat/completions"


def chat(stream=False, **more):
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    return {"model": "tiny-r1", "messages": messages, "temperature": 0, "stream": stream} | more


class Authority:
    """Signs certificates for a test."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self._run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                  "-keyout", self.path("key"), "-out", self.path("pem"))
        self.pem = self.path("pem")

    def path(self, end):
        return str(self.folder / f"{self.name}.{end}")

    def sign(self, name, days=2):
        """The files of a certificate for localhost and of its key."""
        files = [str(self.folder / f"{name}.{end}") for end in ("pem", "key", "csr", "ext")]
        pem, key, request, extension = files
        with open(extension, "w") as file:
            file.write("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self._run("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", key,
                  "-out", request)
        self._run("x509", "-req", "-in", request, "-CA", self.pem, "-CAkey", self.path("key"),
                  "-days", str(days), "-extfile", extension, "-out", pem)
        return pem, key

    @staticmethod
    def _run(*arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="module")
def files(authority):
    return authority.sign("server")


@pytest.fixture(scope="module")
def tls_server(files):
    with serving("--ssl-certfile", files[0], "--ssl-keyfile", files[1], "--header-timeout", "2") as server:
        yield server


def port_of(server):
    return int(server.url.rsplit(":", 1)[1])


def connect(server, authority, **options):
    context = ssl.create_default_context(cafile=authority.pem)
    for name, value in options.items():
        setattr(context, name, value)
    plain = socket.create_connection(("127.0.0.1", port_of(server)), timeout=20)
    return context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)


def read_all(client):
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


def head(path, method="GET", more=""):
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()


def test_serves_over_tls(tls_server, authority):
    assert tls_server.url.startswith("https://")
    with requests.Session() as session:
        session.trust_env, session.verify = False, authority.pem
        for _ in range(3):  # on one connection
            assert session.get(f"{tls_server.url}/health", timeout=10).status_code == 200
            answer = session.post(tls_server.url + CHAT, json=chat(), timeout=60).json()
            assert "4" in answer["choices"][0]["message"]["content"]
        streamed = session.post(tls_server.url + CHAT, json=chat(True), stream=True, timeout=60)
        assert list(streamed.iter_lines())[-2] == b"data: [DONE]"
        text = " ".join(["word"] * 20000)
        tokens = session.post(f"{tls_server.url}/tokenize", json={"prompt": text}, timeout=60).json()
        assert tokens["count"] > 1000


def test_answers_pipelined_requests_over_tls(tls_server, authority):
    with connect(tls_server, authority) as client:
        client.sendall(head("/version") + head("/nowhere") + head("/live", more="Connection: close\r\n"))
        answers = read_all(client)  # a ragged end would raise
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"404", b"200"]


def test_a_stream_over_tls_ends_with_its_client(tls_server, authority):
    body = json.dumps(chat(True, ignore_eos=True)).encode()
    more = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    client = connect(tls_server, authority)
    client.sendall(head(CHAT, "POST", more) + body)
    assert client.recv(1000).startswith(b"HTTP/1.1 200")

    def running():
        metrics = requests.get(f"{tls_server.url}/metrics", verify=authority.pem, timeout=10).text
        return next(float(l.split()[-1]) for l in metrics.splitlines() if l.startswith("vllm:num_requests_running"))

    assert eventually(lambda: running() == 1)
    client.close()
    assert eventually(lambda: running() == 0)


def test_only_tls_is_spoken(tls_server, authority):
    with socket.create_connection(("127.0.0.1", port_of(tls_server)), timeout=10) as plain:
        plain.sendall(head("/health"))
        assert not read_all(plain).startswith(b"HTTP/")
    with pytest.raises(OSError):
        connect(tls_server, authority, minimum_version=ssl.TLSVersion.TLSv1,
                maximum_version=ssl.TLSVersion.TLSv1_1)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        with connect(tls_server, authority, minimum_version=version, maximum_version=version) as client:
            client.sendall(head("/live", more="Connection: close\r\n"))
            assert read_all(client).startswith(b"HTTP/1.1 200")


def test_a_client_that_says_nothing_is_closed(tls_server):
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port_of(tls_server)), timeout=10) as silent:
        assert read_all(silent) == b""
    assert 1 < time.monotonic() - began < 8


def test_clients_may_be_asked_for_certificates(tmp_path, authority, files):
    mine, stranger = authority.sign("client"), Authority(tmp_path, "other").sign("stranger")
    with serving("--ssl-certfile", files[0], "--ssl-keyfile", files[1], "--ssl-ca-certs", authority.pem) as server:
        get = lambda **options: requests.get(f"{server.url}/health", verify=authority.pem, timeout=10, **options)
        assert get(cert=mine).status_code == 200
        for options in ({}, {"cert": stranger}):
            with pytest.raises(requests.exceptions.ConnectionError):
                get(**options)


def failed_handshakes(server, authority):
    text = requests.get(f"{server.url}/metrics", verify=authority.pem, timeout=10).text
    return float(re.search(r"^fathom:tls_handshakes_failed_total (.*)$", text, re.M)[1])


def test_handshakes_that_fail_are_counted_and_said_once(authority, files):
    with serving("--ssl-certfile", files[0], "--ssl-keyfile", files[1]) as server:
        socket.create_connection(("127.0.0.1", port_of(server)), timeout=10).close()  # sends nothing
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port_of(server)), timeout=10) as plain:
                plain.sendall(head("/health"))
                read_all(plain)
        assert eventually(lambda: failed_handshakes(server, authority) == 3)
        assert server.output().count(" no TLS: ") == 1
        assert server.stop() == 0


def test_expired_certificates_are_said(authority, files):
    pem, key = authority.sign("expired", days=-1)
    with serving("--ssl-certfile", pem, "--ssl-keyfile", key) as server:
        assert f"--ssl-certfile {pem}: the certificate has expired, and clients will refuse it" in server.output()
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(server, authority)
        assert eventually(lambda: re.search(r" no TLS: .*certificate expired", server.output()))
    with serving("--ssl-certfile", files[0], "--ssl-keyfile", files[1], "--ssl-ca-certs", authority.pem) as server:
        assert "expired" not in server.output()
        with pytest.raises(requests.exceptions.ConnectionError):
            requests.get(f"{server.url}/health", verify=authority.pem, cert=(pem, key), timeout=10)
        assert eventually(lambda: "certificate verify failed" in server.output())
        assert "certificate has expired" in server.output()
        assert f"curl --cert CERT --key KEYFILE --cacert '{files[0]}' https://" in server.output()


def test_certificates_are_read_again(tmp_path, authority):
    pem, key = authority.sign("first")
    with serving("--ssl-certfile", pem, "--ssl-keyfile", key) as server:

        def serial():
            with connect(server, authority) as client:
                return client.getpeercert()["serialNumber"]

        first = serial()
        old = connect(server, authority)
        for ours, new in zip((pem, key), authority.sign("second")):
            os.replace(new, ours)
        server.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: "certificates were read again" in server.output())
        second = serial()
        assert second != first
        old.sendall(head("/live", more="Connection: close\r\n"))
        assert read_all(old).startswith(b"HTTP/1.1 200")
        with open(key, "w") as file:
            file.write("no key")
        server.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: f"certificates stay as they were: --ssl-keyfile {key}" in server.output())
        assert serial() == second
        assert server.stop() == 0


def refusal(*flags):
    port = [] if "--uds" in flags else ["--port", "0"]
    ended = subprocess.run([BINARY, "serve", MODEL, *port, *flags], capture_output=True,
                           text=True, timeout=60)
    assert ended.returncode != 0
    return ended.stderr


def test_files_that_cannot_be_used_are_named(tmp_path, authority, files):
    other = authority.sign("another")
    assert "--ssl-keyfile" in refusal("--ssl-certfile", files[0])
    assert f"--ssl-keyfile {other[1]}:" in refusal("--ssl-certfile", files[0], "--ssl-keyfile", other[1])
    kinds = tmp_path / "ec.key"
    Authority._run("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", kinds)
    assert f"--ssl-keyfile {kinds}: it is not the key of {files[0]}" in refusal(
        "--ssl-certfile", files[0], "--ssl-keyfile", kinds)
    assert "--ssl-certfile /nowhere: there is no such file" in refusal(
        "--ssl-certfile", "/nowhere", "--ssl-keyfile", files[1])
    assert "/dev/zero: it is no plain file" in refusal("--ssl-certfile", "/dev/zero", "--ssl-keyfile", files[1])
    no_certificate = refusal("--ssl-certfile", files[1], "--ssl-keyfile", files[1])
    assert f"--ssl-certfile {files[1]}:" in no_certificate and "it must be a certificate, in PEM (" in no_certificate
    assert f"--ssl-ca-certs {files[1]}:" in refusal(
        "--ssl-certfile", files[0], "--ssl-keyfile", files[1], "--ssl-ca-certs", files[1])


def ask_file(path, text):
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(path))
        client.sendall(text)
        return read_all(client)


def test_serves_on_a_unix_socket(tmp_path):
    path = tmp_path / "fathom.sock"
    end = "Connection: close\r\n"
    with serving("--uds", path) as server:
        assert server.url == str(path)
        assert ask_file(path, head("/health", more=end)).startswith(b"HTTP/1.1 200")
        body = json.dumps(chat()).encode()
        more = f"{end}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        assert b'"finish_reason":"stop"' in ask_file(path, head(CHAT, "POST", more) + body)
        said = f"user {os.getuid()} POST {CHAT} 200"
        assert eventually(lambda: said in server.output())
        assert "another program serves there" in refusal("--uds", path)
        server.kill()
    assert path.exists()  # killed; the next one takes its place
    with serving("--uds", path) as server:
        assert ask_file(path, head("/health", more=end)).startswith(b"HTTP/1.1 200")
        assert server.stop() == 0
    assert not path.exists()
    path.write_text("a file")
    assert "it is there already, and no socket" in refusal("--uds", path)
    assert path.read_text() == "a file"
    assert "has 1 to 107 bytes" in refusal("--uds", tmp_path / ("x" * 120))
