"""Servers that are slow, endless or hostile, and addresses and names that are none."""

import http.server
import io
import itertools
import json
import threading
import time

import PIL.Image
import pytest

from hf_captioners.cli import main
from hf_captioners.data.image_download import LOG_FILE, DownloadSettings, download_images
from hf_captioners.pipelines import image_captioning
from hf_captioners.processing.image_reading import read_image


def png():
    stream = io.BytesIO()
    PIL.Image.new("RGB", (16, 16), "red").save(stream, "PNG")
    return stream.getvalue()


SLOW_PARTS = 600  # with the pause between them a minute, twice the time that a test allows on a busy machine
PATIENT = 60.0  # seconds to wait for an answer that comes at once where the machine is not busy


class Hostile(http.server.BaseHTTPRequestHandler):
    secret = ""

    def do_GET(self):
        getattr(self, "serve_" + self.path.strip("/"))()

    def serve_good(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(png())

    def serve_endless(self):
        self.send_response(200)
        self.end_headers()
        while True:
            self.wfile.write(b"x" * 2**16)

    def serve_declared(self):
        self.send_response(200)
        self.send_header("Content-Length", str(10**12))
        self.end_headers()
        time.sleep(3)

    def drip(self, parts):
        for part in parts:
            self.wfile.write(part)
            self.wfile.flush()
            time.sleep(0.1)

    def serve_slow(self):
        self.send_response(200)
        self.end_headers()
        self.drip(itertools.repeat(b"x", SLOW_PARTS))

    def serve_headers(self):
        self.drip([b"HTTP/1.1 200 OK\r\n", *(f"X-{number}: 1\r\n".encode() for number in range(SLOW_PARTS))])

    def serve_continue(self):
        self.drip([b"HTTP/1.1 100 Continue\r\n\r\n"] * SLOW_PARTS)

    def serve_cut(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc")

    def serve_nonsense(self):
        self.wfile.write(b"\x00\xff" * 100)

    def serve_nothing(self):
        pass

    def redirect(self, target):
        self.send_response(302)
        self.send_header("Location", target)
        self.end_headers()

    def serve_far(self):
        self.send_response(302)
        self.send_header("Location", "/good")
        self.send_header("Content-Length", str(2**63 - 1))
        self.end_headers()
        for _ in range(1000):
            self.wfile.write(b"x" * 2**16)

    def serve_file(self):
        self.redirect("file://" + Hostile.secret)

    def serve_data(self):
        self.redirect("data:image/png;base64,AAAA")

    def serve_ftp(self):
        self.redirect("ftp://127.0.0.1/a.png")

    def serve_loop(self):
        self.redirect("/loop")

    def serve_broken(self):
        self.send_error(500)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        server.handle_error = lambda *_: None  # clients hang up
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


DOCUMENTED = {
    "endless": (ValueError, "larger than 1,000,000 bytes"),
    "declared": (ValueError, "larger than 1,000,000 bytes"),
    "slow": (TimeoutError, "timed out after 0.5 seconds"),
    "headers": (TimeoutError, "timed out after 0.5 seconds"),
    "continue": (TimeoutError, "timed out after 0.5 seconds"),
    "cut": (ConnectionError, "cannot be downloaded"),
    "nonsense": (ConnectionError, "cannot be downloaded"),
    "nothing": (ConnectionError, "cannot be downloaded"),
    "file": (FileNotFoundError, "302"),
    "data": (FileNotFoundError, "302"),
    "ftp": ((FileNotFoundError, ConnectionError), "cannot be downloaded"),
    "loop": (FileNotFoundError, "302"),
    "broken": (FileNotFoundError, "500"),
}


@pytest.mark.parametrize("reader", ["read_image", "pipeline"])
@pytest.mark.parametrize("page", DOCUMENTED)
def test_servers_that_misbehave(page, reader, address, tmp_path):
    """Each ends in a documented error that names the address, in the given time, however slowly it sends."""
    Hostile.secret = str(tmp_path / "secret.png")
    (tmp_path / "secret.png").write_bytes(png())
    expected, said = DOCUMENTED[page]
    read = read_image if reader == "read_image" else image_captioning.fetch
    start = time.monotonic()
    with pytest.raises(expected, match=said) as raised:
        read(f"{address}/{page}", timeout=0.5 if expected is TimeoutError else PATIENT, max_bytes=1e6)
    assert address in str(raised.value)
    assert time.monotonic() - start < 30


def test_the_content_of_a_redirect_is_not_read(address):
    """It may be endless, or stated as larger than any memory."""
    assert read_image(f"{address}/far", timeout=5, max_bytes=1e6).size == (16, 16)


def test_limits_can_be_raised(address):
    with pytest.raises(ValueError, match="`max_bytes`"):
        read_image(f"{address}/good", max_bytes=10)
    assert read_image(f"{address}/good", timeout=float("inf"), max_bytes=float("inf")).size == (16, 16)
    with pytest.raises(ValueError, match="`timeout` is 0"):
        read_image(f"{address}/good", timeout=0)


@pytest.mark.parametrize(
    "text", ["http://", "http://[bad", "http://exa mple/", "http://\udcff/", "http://127.0.0.1:9/"]
)
def test_addresses_that_are_none(text):
    with pytest.raises((ValueError, ConnectionError), match="cannot be downloaded"):
        read_image(text, timeout=2)


def test_bad_names_and_addresses_end_no_download(address, tmp_path):
    (tmp_path / "secret.png").write_bytes(png())
    good = f"{address}/good"
    names = ["a/../../b", "../up", "nul\0name", "x" * 300, "ü" * 120, "surrogate\udcff", "", "..", "a\\b", "/etc/x"]
    urls = [
        f"file://{tmp_path}/secret.png",
        "data:image/png;base64,AAAA",
        "ftp://127.0.0.1/a",
        "a.png",
        "http://\udcff",
    ]
    wanted = [(name, good) for name in names] + [(f"u{place}", url) for place, url in enumerate(urls)]
    folder = tmp_path / "images"
    report = download_images([*wanted, ("fine", good)], folder, DownloadSettings(timeout=5, retries=0))
    assert report.outcomes == {
        "fetched": 1,
        "not a file name": len(names),
        "not an http(s) address": 4,
        "no connection": 1,
    }
    assert sorted(path.name for path in folder.iterdir()) == [f".{LOG_FILE}.lock", LOG_FILE, "fine.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "secret.png"]
    logged = {json.loads(line)["name"] for line in (folder / LOG_FILE).read_text().splitlines()}
    assert logged == {*names, *(name for name, _ in wanted), "fine"}
    again = download_images([*wanted, ("fine", good)], folder)
    assert again.outcomes == report.outcomes  # a repeated call passes over them


def test_one_slow_server_holds_no_download(address, tmp_path):
    start = time.monotonic()
    wanted = [(page, f"{address}/{page}") for page in ("headers", "continue", "slow", "endless")]
    settings = DownloadSettings(timeout=1.5, retries=0, max_bytes=10**6)
    assert download_images(wanted, tmp_path, settings).outcomes == {"timeout": 3, "too large": 1}
    assert time.monotonic() - start < 30


def test_the_command_names_what_is_missing(address, tmp_path, capsys):
    """It goes on, ends with a count and status 1, and a repeated call passes over what failed."""
    lines = [
        f"a dog\t{address}/good",
        f"a cat\t{address}/broken",
        "a cow\tfile:///etc/passwd",
        f"a fox\t{address}/good",
    ]
    (tmp_path / "Validation_GCC-1.1.0-Validation.tsv").write_text("".join(line + "\n" for line in lines))
    typed = ["download-images", "--data_dir", str(tmp_path), "--split", "validation", "--retries", "0"]
    for expected, more in ((1, []), (1, []), (0, ["--allow_skipped"])):
        assert main([*typed, *more]) == expected
        out, err = capsys.readouterr()
        assert "not downloaded: 000000001: http 500" in err and "2 image(s) could not be downloaded" in err
        assert "2 of 3 images are here" in out
    assert {path.name for path in (tmp_path / "validation").glob("*.png")} == {"000000000.png", "000000003.png"}
    assert main([*typed, "--timeout", "0"]) == 2
    assert "`--timeout` is 0" in capsys.readouterr().err
