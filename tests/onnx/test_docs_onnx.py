"""The code blocks of docs/onnx.md run."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image

from hf_captioners.cli import command_parser, load_command, main

PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"


def test_blocks_run(exported, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Image.linear_gradient("L").convert("RGB").save("photo.jpg")
    names: dict = {}
    ran = []
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S):
        if language == "python":
            exec(compile(text, str(PAGE), "exec"), names)
            ran.append("captioner")
        for line in text.strip().splitlines() if language == "bash" else ():
            command, *arguments = shlex.split(line)
            if command == "hf-captioners" and arguments[0] == "caption":
                assert main(arguments) == 0
            elif command == "hf-captioners":  # other tests, and the fixture, have run these commands
                typed = command_parser(arguments[0], load_command(arguments[0])).parse_args(arguments[1:])
                if arguments[0] == "export":
                    shutil.copytree(exported, typed.output_dir)
            elif command == "python" and "http.server" not in arguments:
                subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            else:
                assert command in ("pip", "npm", "python")  # test_browser.py runs the page
            ran.append(command)
    assert sorted(ran) == ["captioner", *4 * ["hf-captioners"], "npm", "pip", "pip", "python", "python"]
