"""Hostile uploads and requests to the page of a Space, which Gradio serves in the process of the attack."""

import http.client
import json
import os
import random
from pathlib import Path
from typing import Any
from unittest import mock

from hf_captioners.hub.serving import APP, space_files

from .attacked_images import HOSTILE, POSTSCRIPT, decoded_bytes, large_png, whole_images
from .isolated import Attempt
from .mutators import mutated, mutated_json
from .watched_files import CANARIES

PAGE = "the page of the Space"
NAMES = (
    *("photo.png", "x.svg", "x.eps", "../../up.png", "a/b.png", "x" * 300 + ".png", "", ".", "nul\0.png", "x.png;y"),
    *('quote".png', "line\r\nX: y.png", "\u202egnp.exe", "x.gif", "$(touch executed).png", "x.html"),
)
SECONDS = 60  # that a request may wait


class Page:
    """The page, and a client of it.

    Args:
        material: of which the captioner answers.
        folder: of uploads.
    """

    def __init__(self, material: Any, folder: Path) -> None:
        os.environ |= {"GRADIO_TEMP_DIR": str(folder), "GRADIO_ANALYTICS_ENABLED": "False"}
        names: dict[str, Any] = {"__name__": "app"}
        with mock.patch("transformers.pipeline", lambda **_: material.pipeline):
            exec(space_files(material.captioner, "owner/name", "https://hub")[APP], names)
        _, address, _ = names["page"].launch(
            prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", max_file_size="64mb"
        )
        self.port = int(address.rstrip("/").rpartition(":")[2])

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> tuple[int, bytes]:
        """Send a request; return status and content of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request(method, f"/gradio_api/{path}", body, {"Content-Type": kind})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def upload(self, form: bytes) -> str:
        """Upload a form with a file, and return the path of the file on the server.

        Raises:
            ValueError: it is refused.
        """
        status, content = self.ask("POST", "upload", form, "multipart/form-data; boundary=BOUNDARY")
        if status != 200 or not json.loads(content):
            raise ValueError(f"{PAGE} refuses an upload: {status} {content[:200]!r}")
        return str(json.loads(content)[0])

    def caption(self, image: str) -> str:
        """Ask for the caption of an image, which is the text of JSON.

        Raises:
            ValueError: it is refused.
        """
        status, content = self.ask("POST", "call/caption", f'{{"data": [{image}]}}'.encode())
        if status != 200:
            raise ValueError(f"{PAGE} refuses a request: {status} {content[:200]!r}")
        _, content = self.ask("GET", f"call/caption/{json.loads(content)['event_id']}")
        lines = content.decode().splitlines()
        if "event: complete" not in lines:
            raise ValueError(f"{PAGE} answers: {content[:500]!r}")
        (caption,) = json.loads(lines[lines.index("event: complete") + 1].removeprefix("data: "))
        assert isinstance(caption, str), caption
        return caption


def form_of(content: bytes, name: str) -> bytes:
    """Return the form in which a browser sends a file."""
    head = f'--BOUNDARY\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
    return head.encode() + content + b"\r\n--BOUNDARY--\r\n"


def uploaded(path: str, name: str, **more: Any) -> dict[str, Any]:
    """Return what a browser sends as an uploaded file."""
    return {"path": path, "orig_name": name, "meta": {"_type": "gradio.FileData"}, **more}


def attack_space(material: Any, rng: random.Random, folder: Path) -> Attempt:
    """Upload hostile files, or ask for the caption of files that were not uploaded; the page goes on afterwards."""
    whole = (material.images / "scene_000.png").read_bytes()
    page = Page(material, folder / "uploads")
    path = page.upload(form_of(whole, "photo.png"))
    good = json.dumps(uploaded(path, "photo.png"))
    expected = page.caption(good)
    files = list(whole_images().values())
    name = rng.choice(NAMES)
    content, how = rng.choice((POSTSCRIPT, b"", b"<svg/>", rng.choice(files))), "a file"
    if rng.random() < 0.5:
        maker = rng.choice([maker for maker in HOSTILE if maker is not large_png])
        how, content = maker(rng)
    if rng.random() < 0.4:
        content, change = mutated(content, rng, files)
        how = f"{how}: {change}"
    form = form_of(content, name)
    kind = rng.choice(("upload", "upload", "upload", "form", "another file", "another file", "JSON", "data"))
    if kind == "form":
        form, how = mutated(form, rng)
    outside, uploads = material.images / "scene_001.png", Path(path).parent
    relative = os.path.relpath(outside, uploads)
    places = (
        *(str(outside), str(outside), f"{uploads}/{relative}", os.path.relpath(outside), f"file://{outside}"),
        *(str(folder.parent / CANARIES / "secret.txt"), "/etc/passwd", "/dev/zero", str(uploads), ""),
        "http://127.0.0.1:9/x.png",
    )
    another: dict[str, Any] = {"path": rng.choice(places)} | rng.choice(({}, {"url": str(outside)}, {"meta": {}}))
    if rng.random() < 0.3:
        another = uploaded(another["path"], name)

    def attack() -> None:
        try:
            if kind == "another file":
                caption = page.caption(json.dumps(another))
                raise AssertionError(f"{another} was captioned: {caption}")
            if kind == "JSON":
                page.caption(mutated_json(json.loads(good), rng)[0])
            elif kind == "data":
                page.caption(json.dumps({"path": path, "url": "data:image/png;base64,JSFQUy1BZG9iZS0zLjA="}))
            else:
                page.caption(json.dumps(uploaded(page.upload(form), name)))
        finally:
            assert page.caption(good) == expected, "the page captions no more, or in another way"

    what = {"upload": f"{name!r:.40}: {how}", "form": f"form: {how}", "another file": str(another)}.get(kind, kind)
    return Attempt(what, attack, (PAGE,), decoded_bytes(content))


def prepare_space(material: Any) -> None:
    """Import Gradio, and what captioning imports."""
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise ImportError("the page of a Space needs Gradio: pip install 'hf-captioners[space]'") from error
    whole_images()
    material.pipeline(str(material.images / "scene_000.png"))
