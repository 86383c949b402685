"""The server: captions in batches, requests that are refused, and clients that misbehave."""

import gzip
import re
import resource
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hf_captioners import cli
from hf_captioners.server.application import Limits, host_name
from hf_captioners.server.description import STATUSES
from hf_captioners.server.parameters import PARAMETERS
from tests.captioning.awkward_images import bomb

from .client import PNG, ask
from .conftest import command_serves, served

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def port(caption):
    with served(caption, limits=Limits(max_bytes=200_000, max_requests=40)) as port:
        yield port


def test_clients_at_once_get_what_they_get_alone_in_batches(caption, contents, port):
    expected = caption({"image": contents})
    alone = [ask(port, content)[1] for content in contents]
    assert [answer["caption"] for answer in alone] == expected["caption"]
    assert [answer["score"] for answer in alone] == pytest.approx(expected["score"], abs=1e-4)
    caption.sizes.clear()
    with ThreadPoolExecutor(32) as clients:
        answers = list(clients.map(lambda place: ask(port, contents[place % 10]), range(32)))
    assert [status for status, *_ in answers] == [200] * 32
    assert [answer["caption"] for _, answer, _ in answers] == [expected["caption"][place % 10] for place in range(32)]
    assert sum(caption.sizes) == 32 and 1 < max(caption.sizes) <= 16, caption.sizes


def test_what_is_no_image_is_refused_with_the_reason(contents, port, images):
    path = str(next(images.glob("*.png")))
    for body, headers, status, reason in (
        (b"no image", PNG, 422, "given as bytes cannot be read: it is empty, corrupt or no image"),
        (b"", PNG, 422, "cannot be read"),
        (contents[0][:100], PNG, 422, "cannot be read"),
        (bomb(), PNG, 422, "exceeds limit of"),
        (path.encode(), PNG, 422, "no image of the formats"),
        (f"file://{path}".encode(), PNG, 422, "no image of the formats"),
        (contents[0], {}, 415, "content type is application/octet-stream, expected that of an image"),
        (b"%!PS-Adobe-3.0", {"Content-Type": "image/jpeg"}, 422, "no image of the formats"),
        (b"0" * 200_001, PNG, 413, "more than 200,000 bytes"),
        (iter([b"0" * 150_000] * 2), PNG, 413, "more than 200,000 bytes"),
        (b"no such bytes", PNG | {"Content-Encoding": "deflate"}, 400, "The body cannot be read"),
        (b"no such bytes", PNG | {"Content-Encoding": "gzip"}, 400, "The body cannot be read"),
        (gzip.compress(b"0" * 50_000_000), PNG | {"Content-Encoding": "gzip"}, 413, "more than 200,000 bytes"),
    ):
        found, answer, _ = ask(port, body, headers)
        assert (found, reason in answer["error"]) == (status, True), answer
    assert ask(port, contents[0])[0] == 200


def test_other_hosts_and_addresses_are_refused(contents, port):
    """A web page whose name points to this machine gets no answer, and no page of another origin may read one."""
    for name, status in (
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("[::1]:8000", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ):
        for path, method in (("/health", "GET"), ("/caption", "POST")):
            found, _, headers = ask(port, contents[0], PNG | {"Host": name, "Origin": "http://x"}, method, path)
            assert found == status, name
            assert not [header for header in headers if header.lower().startswith("access-control")]
    assert ask(port, method="GET", path="/health")[1] == {"status": "ok", "requests": 0}
    assert [host_name(text) for text in ("Me.Example:80", "::1", "[::1]", "me", "me.")] == [
        "me.example",
        "::1",
        "::1",
        "me",
        "me",
    ]


def send(port, content, sent):
    """Open a connection and send a part of a request."""
    client = socket.create_connection(("127.0.0.1", port))
    lines = ["POST /caption HTTP/1.1", "Host: localhost", "Content-Type: image/png", f"Content-Length: {len(content)}"]
    text = "\r\n".join([*lines, "", ""]).encode() + content
    client.sendall(text[:sent])
    return client


def wait_for_requests(port, number, seconds=60):
    """Wait until the server is answering this number of requests."""
    deadline = time.monotonic() + seconds
    while (requests := ask(port, method="GET", path="/health")[1]["requests"]) != number:
        assert time.monotonic() < deadline, f"{requests} requests are being answered, expected {number}"
        time.sleep(0.02)


def test_clients_that_misbehave_leave_it_healthy(caption, contents):
    with served(caption, limits=Limits(max_requests=4, timeout=3.0)) as port:
        half = [send(port, contents[0], 300) for _ in range(4)]
        stuck = [send(port, contents[0], 20) for _ in range(4)]
        wait_for_requests(port, 4)
        status, answer, headers = ask(port, contents[0])
        assert status == 503 and "4 requests are waiting" in answer["error"] and headers["Retry-After"] == "1"
        assert half[0].recv(100).startswith(b"HTTP/1.1 408")
        wait_for_requests(port, 0)
        for client in half + stuck:
            client.close()
        for client in [send(port, contents[0], 300) for _ in range(3)]:  # it dies while it sends
            client.close()
        slow = [send(port, contents[0], None) for _ in range(3)]  # they never read
        wait_for_requests(port, 0)
        for client in slow:
            client.close()
        status, answer, _ = ask(port, contents[1])
        assert status == 200 and answer["caption"] == caption({"image": contents[1:2]})["caption"][0]


def test_requests_of_clients_that_have_gone_are_left_out(caption, contents):
    with served(caption, limits=Limits(timeout=30)) as port:
        hold = threading.Event()
        computing, own = threading.Event(), caption.pipeline.caption_prepared

        def slowly(items, **options):
            computing.set()
            assert hold.wait(30)
            return own(items, **options)

        caption.pipeline.caption_prepared = slowly
        try:
            with ThreadPoolExecutor(1) as clients:
                first = clients.submit(ask, port, contents[0])
                assert computing.wait(30)
                caption.sizes.clear()
                gone = [send(port, contents[1], None) for _ in range(5)]
                wait_for_requests(port, 6)
                time.sleep(0.3)  # they are prepared; the test holds without it, too
                for client in gone:
                    client.close()
                wait_for_requests(port, 1)
                hold.set()
                assert first.result()[0] == 200
        finally:
            del caption.pipeline.caption_prepared
        assert ask(port, contents[2])[0] == 200
        assert caption.sizes == [1]


def test_a_captioner_that_fails_is_no_fault_of_the_client(caption, contents, caplog):
    with served(caption) as port:
        caption.pipeline.caption_prepared = None
        try:
            status, answer, _ = ask(port, contents[0])
        finally:
            del caption.pipeline.caption_prepared
        assert status == 500 and "log of the server" in answer["error"] and "NoneType" in caplog.text
        assert ask(port, contents[0])[0] == 200


@pytest.mark.slow
def test_the_command_serves(fork_server, captioner, contents, tmp_path):
    """It listens at the loopback interface, says where, and writes no file."""
    typed = ["--generate", "min_new_tokens=3", "--prompt", "a red", "--max_new_tokens", "4"]
    with command_serves(fork_server, captioner, tmp_path, *typed) as (_, port):
        status, answer, _ = ask(port, contents[0])
        assert status == 200 and answer["caption"].startswith("a red"), answer
        assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are set on Linux only")
def test_a_server_without_descriptors_answers_again_when_clients_have_gone(fork_server, captioner, contents, tmp_path):
    with command_serves(fork_server, captioner, tmp_path, "--max_new_tokens", "4") as (server, port):
        expected = ask(port, contents[0])[1]
        descriptors = Path(f"/proc/{server.pid}/fd")
        most = max(int(path.name) for path in descriptors.iterdir()) + 8
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (most, most))
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        deadline = time.monotonic() + 30
        while "Too many open files" not in (tmp_path / "log.txt").read_text():
            assert time.monotonic() < deadline, len(list(descriptors.iterdir()))
            time.sleep(0.1)
        for client in clients:
            client.close()
        status, answer, _ = ask(port, contents[0])
        assert status == 200 and answer == expected
        log = (tmp_path / "log.txt").read_text()
        assert server.poll() is None and log.count("Too many open files") == 1 and "ulimit -n" in log


def test_the_page_names_the_defaults():
    """And every status that the server answers with."""
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    code = (ROOT / "hf_captioners" / "server" / "application.py").read_text(encoding="utf-8")
    named = {int(status) for status in re.findall(r"^\| (\d+)", page, re.MULTILINE)}
    assert {int(status) for status in re.findall(r"refusal\(\s*(\d+)", code)} == named == set(STATUSES)
    assert [name for name in PARAMETERS if f"`{name}`" not in page] == []
    limits = Limits()
    assert (limits.max_bytes, limits.max_requests, limits.timeout) == (20 * 2**20, 64, 60)
    for text in ("`--timeout` (60)", "`--max_bytes` (20 MiB)", "`--max_requests` (64)"):
        assert text in page
    for line in re.findall(r"^hf-captioners serve (.*)$", page, re.MULTILINE):
        typed = cli.command_parser("serve", cli.load_command("serve")).parse_args(line.split())
        assert (typed.model, typed.max_bytes) == ("my_captioner", limits.max_bytes)
        assert (typed.max_requests, typed.timeout) == (limits.max_requests, limits.timeout)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--port", "80800"], "`--port` is 80800, expected 0 to 65535"),
        (["--max_bytes", "0"], "`--max_bytes` is 0, expected more than 0"),
        (["--timeout", "0"], "`--timeout` is 0.0, expected more than 0"),
        (["--generate", "num_beam=3"], "Did you mean `num_beams`"),
    ],
)
def test_wrong_arguments_are_told(typed, said, captioner, capsys):
    assert cli.main(["serve", captioner, *typed]) == 2
    assert said in capsys.readouterr().err
