"""The project in examples/serve_captioner serves a pushed captioner without this library."""

import ast
import io
import json
import os
import socket
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import torch
from PIL import Image

from hf_captioners.hub.pushing import push_checkpoint

from .captioner_cases import save_captioner

PROJECT = Path(__file__).parents[2] / "examples" / "serve_captioner"
SERVER = PROJECT / "serve_captioner.py"
# None in place of a module makes it impossible to import.
RUN = (
    "import runpy, sys; sys.modules['hf_captioners'] = None; sys.argv = sys.argv[1:];"
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


def post(address: str, body: bytes) -> dict:
    with urllib.request.urlopen(urllib.request.Request(address, data=body), timeout=600) as answer:
        return json.loads(answer.read())


def test_its_dependencies_are_what_it_imports():
    imported = {
        (node.module or "").partition(".")[0]
        if isinstance(node, ast.ImportFrom)
        else node.names[0].name.partition(".")[0]
        for node in ast.walk(ast.parse(SERVER.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    listed = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]
    packages = {dependency.partition(">")[0] for dependency in listed}
    others = imported - sys.stdlib_module_names
    assert others == {"aiohttp", "PIL", "transformers"} and packages >= {"aiohttp", "pillow", "transformers", "torch"}


def test_it_serves_a_pushed_captioner(hub, fork_server, tmp_path):
    case, model = save_captioner("visualgpt", tmp_path / "captioner")
    model.generation_config.max_new_tokens = 6
    model.save_pretrained(tmp_path / "captioner")
    commit = push_checkpoint(tmp_path / "captioner", "captioner")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["-c", RUN, SERVER, "tester/captioner", "--revision", commit.oid, "--port", port]
    environment = os.environ | hub.environment(tmp_path / "home")
    with open(tmp_path / "log.txt", "w") as log:
        server = fork_server.start(command, log, log, cwd=tmp_path, env=environment)
    try:
        address, body = f"http://127.0.0.1:{port}/caption", io.BytesIO()
        image = Image.linear_gradient("L").resize((32, 32)).convert("RGB")
        image.save(body, "PNG")
        answer = None
        while answer is None:
            assert server.poll() is None, (tmp_path / "log.txt").read_text()[-3000:]
            try:
                answer = post(address, body.getvalue())
            except (ConnectionError, urllib.error.URLError):
                time.sleep(0.3)
        processor = case.make_processor()
        pixels = processor(images=image, return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            (expected,) = processor.post_process_image_text_to_text(model.generate(pixel_values=pixels))
        assert answer == {"caption": expected}
        try:
            post(address, b"no body")
            raise AssertionError("a text was taken for a body")
        except urllib.error.HTTPError as error:
            assert error.code == 400 and b"The body is no image" in error.read()
    finally:
        server.terminate()
        server.wait()
