"""The code of docs/regions.md runs, and its commands have the options that they name."""

import re
import shlex
from pathlib import Path

from hf_captioners.cli import command_parser, load_command
from hf_captioners.modeling.configuration_captioning import CaptioningConfig

PAGE = Path(__file__).parents[2] / "docs" / "regions.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_code_runs(capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.M | re.S)
    exec(compile(code, str(PAGE), "exec"), {})
    assert "torch.Size([1, 5, 16]) torch.Size([1, 5, 4])" in capsys.readouterr().out


def test_commands_can_be_typed():
    commands = "".join(re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.M | re.S))
    programs = []
    for line in commands.strip().splitlines():
        program, name, *arguments = shlex.split(line)
        programs.append(program)
        if program == "python":
            assert (PAGE.parents[1] / name).is_file()
        else:
            command_parser(name, load_command(name)).parse_args(arguments)
    assert set(programs) == {"hf-captioners", "python"}


def test_fields_have_their_defaults():
    for name in re.findall(r"^\| `(\w+)` \|", TEXT, flags=re.M):
        assert hasattr(CaptioningConfig, name), name
    assert CaptioningConfig.vision_min_regions == 1 and CaptioningConfig.vision_score_threshold == 0
