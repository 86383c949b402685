"""Slow, broken and hostile servers on 127.0.0.1, read by every reader of addresses."""

import contextlib
import functools
import random
import socketserver
import threading
import time
from pathlib import Path
from typing import Any

from hf_captioners.data.image_download import LOG_FILE, DownloadSettings, download_images
from hf_captioners.pipelines.image_captioning import fetch
from hf_captioners.processing.image_reading import read_image

from .attacked_images import HOSTILE, large_png, whole_images
from .isolated import Attempt
from .mutators import NUMBERS, mutated

SECONDS = 0.5  # the limit of a download
SLACK = 3.0  # seconds that a download may take longer, on a busy machine
BYTES = 10**6
STATUS = (
    b"200 OK",
    b"200 OK",
    b"200 OK",
    b"200 OK",
    b"206 Partial",
    b"204 None",
    b"301 x",
    b"302 x",
    b"404 x",
    b"500 x",
)
TARGETS = (
    *(b"file:///etc/passwd", b"data:image/png;base64,AAAA", b"ftp://127.0.0.1/x", b"/0", b"//", b"http://[", b""),
    *(b"gopher://127.0.0.1:9/x", b"http://127.0.0.1:9/x", b"javascript:x", b"\xff\xfe", b"http://127.0.0.1:99999/"),
)


def answer(seed: str) -> list[tuple[bytes, float]]:
    """Return the parts of a server's answer, with the pause in seconds after each."""
    rng = random.Random(seed)
    files = list(whole_images().values())
    body = rng.choice(files)
    if rng.random() < 0.4:
        maker = rng.choice([maker for maker in HOSTILE if maker is not large_png])
        body = rng.choice((mutated(body, rng, files)[0], maker(rng)[1], b"", b"<html>", bytes(2 * BYTES)))[: 3 * BYTES]
    length = rng.choice((len(body), len(body), len(body), None, 0, len(body) - 1, len(body) + 1, *NUMBERS))
    headers = [b"HTTP/1.1 " + rng.choice(STATUS)]
    headers += [] if length is None else [b"Content-Length: %d" % length]
    extra = (
        *(b"Location: " + target for target in TARGETS),
        *(b"Transfer-Encoding: chunked", b"Content-Encoding: gzip", b"Connection: close", b"X: " + b"y" * 70_000),
        *(b"Set-Cookie: a=b", b"no colon", b"\0: \0", b"Content-Type: image/png", b"X-%d: 1" % rng.randrange(9)),
    )
    headers += [rng.choice(extra) for _ in range(rng.choice((0, 0, 1, 2, 5, 150)))]
    content = b"\r\n".join(headers) + b"\r\n\r\n" + body
    kind = rng.random()
    if kind < 0.15:
        content, _ = mutated(content, rng)
    if kind < 0.5:
        return [(content, 0.0)]
    if kind < 0.7:  # slowly, from some place on
        start = rng.randrange(len(content))
        return [(content[:start], 0.1), *((content[place : place + 1], 0.1) for place in range(start, start + 50))]
    if kind < 0.8:
        return [(content, 0.0), *((bytes(2**16), 0.0) for _ in range(200))]
    if kind < 0.9:
        return [(b"", 2.0), (content, 0.0)]
    return [(b"HTTP/1.1 100 Continue\r\n\r\n", 0.1)] * 40 + [(content, 0.0)]


class HostileServer(socketserver.BaseRequestHandler):
    """Server whose answer is determined by the seed in the request's path."""

    def handle(self) -> None:
        """Answer, as long as somebody reads."""
        with contextlib.suppress(OSError, IndexError):
            asked = self.request.recv(2**16)
            for piece, seconds in answer(asked.split(b" ")[1].decode("latin1")):
                self.request.sendall(piece)
                time.sleep(seconds)


class Server(socketserver.ThreadingTCPServer):
    """The server, with a thread for each connection."""

    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: Any) -> None:
        """Say nothing: clients hang up."""


@functools.cache
def serve(material: Any = None) -> str:
    """Start the server in this process, and return its address."""
    whole_images()
    server = Server(("127.0.0.1", 0), HostileServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def attack_download(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Read an address, or download several."""
    seed = rng.randrange(10**9)
    address = f"{serve(material)}/{seed}"
    kind = rng.choice(("read_image", "pipeline", "download_images", "download_images"))

    def read() -> None:
        start = time.monotonic()
        try:
            if kind == "read_image":
                assert read_image(address, timeout=SECONDS, max_bytes=BYTES).mode == "RGB"
            elif kind == "pipeline":
                assert len(fetch(address, SECONDS, BYTES)) <= BYTES
            else:
                download(address, rng, folder)
        finally:
            assert time.monotonic() - start < SECONDS + SLACK, "it took longer than its limit"

    return Attempt(f"{kind} of answer {seed}", read, (address,))


def download(address: str, rng: random.Random, folder: Path) -> None:
    """Download some answers; every one has an outcome, and no file is left but images."""
    odd = ("", "../up", "a/b", "nul\0", "x" * 300, "\udcff", ".", "a\\b", "name\n", " ")
    wanted = [(f"image{number}", f"{address}{number}") for number in range(4)]
    wanted += [(rng.choice(odd), address), ("x", rng.choice(TARGETS).decode("latin1"))]
    settings = DownloadSettings(workers=8, timeout=SECONDS, retries=0, max_bytes=BYTES)
    report = download_images(wanted, folder / "images", settings)
    assert report.outcomes.total() == len(wanted)
    files = {path.name for path in (folder / "images").iterdir()} - {LOG_FILE, f".{LOG_FILE}.lock"}
    assert len(files) == report.outcomes["fetched"], files
    for name in files:
        assert read_image(folder / "images" / name).mode == "RGB"
    assert {path.name for path in folder.iterdir()} == {"images"}
    assert download_images(wanted, folder / "images", settings).outcomes == report.outcomes
