"""Fetching images from a server that does everything servers do."""

import http.server
import io
import json
import threading
import time

import PIL.Image
import pytest

from hf_captioners.data.image_download import LOG_FILE, DownloadSettings, download_images
from hf_captioners.output_files import UnsafeFileError

QUICK = DownloadSettings(workers=8, timeout=3.0, retries=1, max_bytes=2**20)


def jpeg(side=64):
    stream = io.BytesIO()
    PIL.Image.linear_gradient("L").resize((side, side)).convert("RGB").save(stream, "JPEG", quality=95)
    return stream.getvalue()


class Server(http.server.BaseHTTPRequestHandler):
    asked: list[str] = []
    failures_left = {"/flaky": 1}

    def do_GET(self):
        Server.asked.append(self.path)
        action = self.path.split("?")[0].strip("/")
        getattr(self, f"serve_{action}", self.serve_nothing)()

    def answer(self, content, kind="image/jpeg", status=200, length=None):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        self.wfile.write(content)

    def serve_good(self):
        self.answer(jpeg())

    def serve_mislabelled(self):
        stream = io.BytesIO()
        PIL.Image.new("RGB", (16, 16), "red").save(stream, "PNG")
        self.answer(stream.getvalue(), "text/plain")

    def serve_redirect(self):
        self.send_response(302)
        self.send_header("Location", "/good")
        self.end_headers()

    def serve_loop(self):
        self.send_response(302)
        self.send_header("Location", "/loop")
        self.end_headers()

    def serve_html(self):
        self.answer(b"<html>gone</html>" * 100, "image/jpeg")

    def serve_truncated(self):
        self.answer(jpeg(400)[:2000])

    def serve_hangup(self):
        self.answer(jpeg(400)[:2000], length=90_000)

    def serve_huge(self):
        self.answer(b"x" * 20 * 2**20)

    def serve_dot(self):
        self.answer(jpeg(2))

    def serve_silent(self):
        time.sleep(60)

    def serve_drip(self):
        self.send_response(200)
        self.end_headers()
        for byte in jpeg()[:600]:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(0.1)

    def serve_flaky(self):
        if Server.failures_left["/flaky"]:
            Server.failures_left["/flaky"] -= 1
            self.answer(b"later", status=503)
        else:
            self.serve_good()

    def serve_nothing(self):
        self.answer(b"", status=404)

    def log_message(self, *_):
        pass


@pytest.fixture
def address():
    Server.asked, Server.failures_left = [], {"/flaky": 1}
    http.server.ThreadingHTTPServer.request_queue_size = 64
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.handle_error = lambda *_: None  # clients that hang up are the point of some cases
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


OUTCOMES = {
    "good": "fetched",
    "mislabelled": "fetched",
    "redirect": "fetched",
    "flaky": "fetched",
    "loop": "http 302",
    "html": "not an image",
    "truncated": "not an image",
    "hangup": "not an image",
    "huge": "too large",
    "dot": "too small",
    "silent": "timeout",
    "drip": "timeout",
    "gone": "http 404",
}


def test_every_kind_of_answer(tmp_path, address):
    report = download_images([(name, f"{address}/{name}?resize=3") for name in OUTCOMES], tmp_path, QUICK)
    log = [json.loads(line) for line in (tmp_path / LOG_FILE).read_text().splitlines()]
    assert {entry["name"]: entry["outcome"] for entry in log} == OUTCOMES
    assert {entry["name"] for entry in log[-2:]} == {"silent", "drip"}, "slow servers do not delay other images"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f".{LOG_FILE}.lock", LOG_FILE, "flaky.jpg", "good.jpg", "mislabelled.png", "redirect.jpg",
    ]  # fmt: skip
    assert report.coverage == pytest.approx(4 / 13)
    assert "4 of 13 images are here (30.8%)" in report.summary()
    assert Server.asked.count("/gone?resize=3") == 1, "a dead link is not tried again"
    assert Server.asked.count("/silent?resize=3") == 2, "a timeout is"


def test_resumes(tmp_path, address):
    wanted = [(str(number), f"{address}/{'good' if number % 2 else 'gone'}") for number in range(10)]
    download_images(wanted[:4], tmp_path, QUICK)
    with open(tmp_path / LOG_FILE, "a") as log:
        log.write('{"name": "4", "outc')  # killed while writing
    before = len(Server.asked)
    report = download_images(iter(wanted), tmp_path, QUICK)
    assert len(Server.asked) - before == 6
    assert report.outcomes == {"fetched": 5, "http 404": 5}
    download_images(wanted, tmp_path, QUICK, retry_failed=True)
    assert len(Server.asked) - before == 6 + 5
    assert not list(tmp_path.glob(".*unfinished"))


def test_servers_that_are_not_there_and_addresses_that_are_none(tmp_path):
    wanted = [("a", "http://127.0.0.1:9/x.jpg"), ("b", "http://"), ("c", "http://[bad"), ("d", "http://exa mple/")]
    assert download_images(wanted, tmp_path, QUICK).outcomes == {"no connection": 4}


@pytest.mark.parametrize("name", [LOG_FILE, f".{LOG_FILE}.lock"])
def test_records_are_not_written_through_links(tmp_path, name):
    folder, outside = tmp_path / "images", tmp_path / "outside"
    folder.mkdir()
    outside.write_text("precious")  # without a line end, which the reader of the record would add
    (folder / name).symlink_to(outside)
    with pytest.raises(UnsafeFileError, match="is not written: it is a symbolic link to"):
        download_images([("a", "ftp://a/a.jpg")], folder)
    assert outside.read_text() == "precious"
