"""List of the public API: names with signatures, commands with flags, deprecations; and its comparison with a release.

`python -m release.public_api` writes `public_api.json` beside this file; `docs/versions.md` says what it promises.
Public are the names of the stubs (`__init__.pyi`), those that README and docs import, and every flag of every command.
Of classes that extend those of transformers, the methods that README and docs name are public.

A break is a name, an argument or a flag that is gone, or a default that changed. Before the first release, the command
writes a list with breaks if it is told `--breaking`. After it, each break needs a deprecation in the list of the last
release, `released/VERSION.json`, which `--release` writes once.
"""

import argparse
import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_captioners import __version__
from hf_captioners.cli import COMMANDS, command_parser, load_command
from hf_captioners.training.parser import argument_list

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("public_api.json")
RELEASED = Path(__file__).with_name("released")
PACKAGE = "hf_captioners"
PYTHON_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
COMMAND = f"python -m {__package__}.public_api"
# Pages about how this library is extended, whose imports are not promised; see docs/versions.md.
INTERNAL_PAGES = ("adding_a_data_set.md", "adding_a_model.md", "adding_an_architecture.md", "development.md")
# Names that only the pages of the library's own experiments import.
EXPERIMENTAL = (f"{PACKAGE}.demo", f"{PACKAGE}.explain", f"{PACKAGE}.cli")
NO_VALUE = inspect.Parameter.empty
STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}

Api = dict[str, Any]


def imported_names(code: str, package: str = "") -> Iterator[str]:
    """Yield the full names that Python code imports from this library.

    Args:
        code: Python code, or a stub.
        package: package that relative imports belong to.
    """
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield from (f"{package}.{alias.asname or alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def public_names() -> list[str]:
    """Return the sorted full names of the public API; a name that two modules export is listed for both."""
    names: set[str] = set()
    for stub in (ROOT / PACKAGE).rglob("__init__.pyi"):
        package = ".".join(stub.relative_to(ROOT).parent.parts)
        names.update(imported_names(stub.read_text(encoding="utf-8"), package))
    names.update(f"{PACKAGE}.interfaces.{name}" for name in ("Captioner", "CaptioningOptions", "Processor"))
    for text in _pages():
        for block in PYTHON_BLOCK.findall(text):
            names.update(imported_names(block))
    return sorted(name for name in names if not name.startswith(EXPERIMENTAL))


def _pages() -> list[str]:
    """Return the paths of README and of the user documentation."""
    folders = (ROOT / "docs", ROOT / "docs" / "architectures")
    pages = (ROOT / "README.md", *(page for folder in folders for page in sorted(folder.glob("*.md"))))
    return [page.read_text(encoding="utf-8") for page in pages if page.name not in INTERNAL_PAGES]


@functools.cache
def documented_words() -> frozenset[str]:
    """Return all identifiers in code of README and docs."""
    code = " ".join(code for text in _pages() for code in CODE.findall(text))
    return frozenset(re.findall(r"[A-Za-z_]\w*", code))


def value_text(value: object) -> str:
    """Format a default value as text that is equal in every process and Python version."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(value_text, value)))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{value_text(key)}: {value_text(entry)}' for key, entry in value.items())}}}"
    if callable(value):
        return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__name__)}"
    if isinstance(value, Path) and value.is_relative_to(ROOT):
        return f"<{value.relative_to(ROOT)}>"
    if value == sys.executable:
        return "<python>"
    text = repr(value)
    return text if " at 0x" not in text else f"<{type(value).__name__}>"


def parameters_of(function: Callable[..., Any], skipped: int = 0) -> list[str]:
    """Return the parameters of a function as text: `name` or `name=default`, keyword-only ones after `*`."""
    texts: list[str] = []
    for parameter in list(inspect.signature(function).parameters.values())[skipped:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not any(text.startswith("*") for text in texts):
            texts.append("*")
        prefix = STARS.get(parameter.kind, "")
        default = "" if parameter.default is NO_VALUE else f"={value_text(parameter.default)}"
        texts.append(f"{prefix}{parameter.name}{default}")
    return texts


def fields_of(kind: type) -> list[str]:
    """Return the fields of a dataclass of this library as keyword-only parameters."""
    texts = ["*"]
    for field in dataclasses.fields(kind):
        owner = next(base for base in kind.__mro__ if field.name in base.__dict__.get("__annotations__", {}))
        if not is_own(owner) or not field.init:
            continue
        default: Any = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        texts.append(field.name if default is dataclasses.MISSING else f"{field.name}={value_text(default)}")
    return texts


def is_own(kind: type) -> bool:
    """Return True if this library defines the class."""
    return kind.__module__.split(".")[0] == PACKAGE


def entries_of(name: str, value: Any, classes: Mapping[type, str]) -> Iterator[tuple[str, Api]]:
    """Yield list entries of a public name: the name itself, and methods and properties of a class.

    Args:
        name: full name.
        value: what it names.
        classes: public classes and their names; what such a base defines has entries of its own.
    """
    if inspect.ismodule(value):
        yield name, {"kind": "module"}
    elif not isinstance(value, type):
        if callable(value):
            yield name, {"kind": "function", "parameters": parameters_of(value)}
        else:
            yield name, {"kind": "value", **({"keys": sorted(value)} if isinstance(value, Mapping) else {})}
    elif not is_own(value):
        yield name, {"kind": "class"}
    else:
        bases = [base for base in value.__mro__[1:] if is_own(base)]
        entry: Api = {"kind": "class", "bases": sorted(classes[base] for base in bases if base in classes)}
        if dataclasses.is_dataclass(value):
            entry["parameters"] = fields_of(value)
        elif any("__init__" in vars(base) for base in (value, *bases)) and not getattr(value, "_is_protocol", False):
            constructor: Any = inspect.getattr_static(value, "__init__")
            entry["parameters"] = parameters_of(constructor, 1)
        yield name, entry
        for attribute in public_members(value, bases, classes):
            member = inspect.getattr_static(value, attribute)
            function = getattr(member, "__func__", member)
            if isinstance(member, property):
                yield f"{name}.{attribute}", {"kind": "property"}
            elif inspect.isfunction(function):
                skipped = 0 if isinstance(member, staticmethod) else 1
                yield f"{name}.{attribute}", {"kind": "method", "parameters": parameters_of(function, skipped)}


def public_members(value: type, bases: list[type], classes: Mapping[type, str]) -> list[str]:
    """Return the public methods and properties that a class adds to its public bases."""
    extends = any(base.__module__.split(".")[0] in ("transformers", "torch") for base in value.__mro__)
    inherited = {attribute for base in bases if base in classes for attribute in vars(base)}
    names = {attribute for base in (value, *bases) for attribute in vars(base)} - inherited | vars(value).keys()
    public = [name for name in sorted(names) if name == "__call__" or not name.startswith("_")]
    words = documented_words() | {"__call__", "forward"}
    return [name for name in public if name in words] if extends else public


def flags_of(name: str) -> Api:
    """Return the flags and positional arguments of a command: default, choices, and whether they are required.

    Flags of transformers' `Seq2SeqTrainingArguments` follow that library.
    """
    flags: Api = {}
    arguments = argument_list() if name in ("train", "reproduce") else {}
    for action in command_parser(name, load_command(name))._actions:
        argument = arguments.get(action.dest)
        foreign = argument is not None and argument.group == "transformers"
        if action.dest == "help" or action.help == argparse.SUPPRESS or foreign:
            continue
        default = "unset" if action.default == argparse.SUPPRESS else value_text(action.default)
        flag: Api = {"default": argument.default if argument else default}
        if action.choices is not None:
            flag["choices"] = sorted(map(str, action.choices))
        if action.required and action.nargs not in ("*", "?"):
            flag["required"] = True
        for text in action.option_strings or [action.dest]:
            flags[text] = flag
    return flags


def deprecations_of(name: str, value: Any) -> dict[str, str]:
    """Return the deprecation messages of a name, its methods and their arguments.

    See `hf_captioners.deprecation`.
    """
    messages: dict[str, str] = {}
    members = [(name, value)]
    if isinstance(value, type) and is_own(value):
        static = inspect.getmembers_static(value)
        members += [(f"{name}.{attribute}", member) for attribute, member in static if not attribute.startswith("_")]
    for key, member in members:
        member = getattr(member, "__func__", member)
        if isinstance(vars(member).get("__deprecated__") if hasattr(member, "__dict__") else None, str):
            messages[key] = member.__deprecated__
        init = vars(member).get("__init__") if isinstance(member, type) else member
        for argument, message in getattr(init, "__deprecated_arguments__", {}).items():
            messages[f"{key}({argument})"] = message
    return messages


def public_api() -> Api:
    """Return the list of the public API of these sources."""
    values = {}
    for name in public_names():
        module, _, attribute = name.rpartition(".")
        values[name] = getattr(importlib.import_module(module), attribute)
    classes: dict[type, str] = {}
    for name, value in values.items():
        if isinstance(value, type):
            classes.setdefault(value, name)
    names: Api = {}
    deprecated: dict[str, str] = {}
    for name, value in values.items():
        names.update(entries_of(name, value, classes))
        deprecated.update(deprecations_of(name, value))
    commands = {name: flags_of(name) for name in COMMANDS}
    for name, flags in commands.items():
        for action in command_parser(name, load_command(name))._actions:
            if (action.help or "").startswith("Deprecated"):
                deprecated |= {f"{name} {flag}": str(action.help) for flag in action.option_strings if flag in flags}
    return {"version": __version__, "names": names, "commands": commands, "deprecated": deprecated}


def breaks(old: Api, new: Api) -> list[str]:
    """Return the incompatible changes between two lists as sentences, without those that were deprecated before."""
    changes: list[tuple[str, str]] = []
    for name, entry in old["names"].items():
        if name not in new["names"]:
            changes.append((name, f"{name} is gone"))
            continue
        other = new["names"][name]
        if other["kind"] != entry["kind"]:
            changes.append((name, f"{name} was a {entry['kind']} and is a {other['kind']}"))
            continue
        gone = [base for base in entry.get("bases", ()) if base not in other["bases"]]
        changes += [(name, f"{name} is no {base} any more") for base in gone]
        changes += [
            (name, f"{name} has no {key!r} any more") for key in entry.get("keys", ()) if key not in other["keys"]
        ]
        before, after = entry.get("parameters"), other.get("parameters")
        if before is not None:
            changes += [
                (f"{name}({parameter})", f"{name}: {text}")
                for parameter, text in parameter_breaks(before, after or [])
            ]
    for command, flags in old["commands"].items():
        if command not in new["commands"]:
            changes.append((command, f"the command {command} is gone"))
            continue
        present = new["commands"][command]
        for flag, facts in flags.items():
            texts = flag_breaks(flag, facts, present.get(flag))
            changes += [(f"{command} {flag}", f"{command}: {text}") for text in texts]
        added = [flag for flag, facts in present.items() if flag not in flags and facts.get("required")]
        changes += [(f"{command} {flag}", f"{command}: {flag} is new and required") for flag in added]
    return [text for key, text in changes if not _is_deprecated(key, old["deprecated"])]


def _is_deprecated(key: str, deprecated: Mapping[str, str]) -> bool:
    """Return True if a name, its class or its function was deprecated in the older list."""
    return any(key == name or key.startswith((f"{name}.", f"{name}(", f"{name} ")) for name in deprecated)


def parameter_breaks(before: list[str], after: list[str]) -> list[tuple[str, str]]:
    """Return the incompatible changes of a signature, one sentence per parameter."""
    old, new = _defaults(before), _defaults(after)
    changes = []
    for name, default in old.items():
        if name not in new:
            if "**" not in name and "*" not in name and any(parameter.startswith("**") for parameter in new):
                continue  # it is still taken by name
            changes.append((name, f"`{name}` is gone"))
        elif new[name] != default:
            was, now = ("required" if parameter is None else parameter for parameter in (default, new[name]))
            changes.append((name, f"the default of `{name}` was {was} and is {now}"))
    places = _positional(after)
    for place, name in enumerate(_positional(before)):
        if name in new and (place >= len(places) or places[place] != name):
            changes.append((name, f"`{name}` is not argument {place + 1} any more"))
    changes += [
        (name, f"`{name}` is new and has no default")
        for name, default in new.items()
        if name not in old and default is None and not name.startswith("*")
    ]
    return changes


def _defaults(parameters: list[str]) -> dict[str, str | None]:
    """Return the defaults of parameters by name; None for required ones."""
    split = (parameter.partition("=") for parameter in parameters if parameter != "*")
    return {name: default if sign else None for name, sign, default in split}


def _positional(parameters: list[str]) -> list[str]:
    """Return the names of parameters that may be passed by position."""
    names = [parameter.partition("=")[0] for parameter in parameters]
    end = next((place for place, name in enumerate(names) if name.startswith("*")), len(names))
    return names[:end]


def flag_breaks(flag: str, old: Api, new: Api | None) -> list[str]:
    """Return the incompatible changes of a command's flag as sentences."""
    if new is None:
        return [f"{flag} is gone"]
    changes = []
    if new["default"] != old["default"]:
        changes.append(f"the default of {flag} was {old['default']} and is {new['default']}")
    if new.get("required") and not old.get("required"):
        changes.append(f"{flag} is required now")
    if "choices" in new:
        gone = sorted(set(old.get("choices", ())) - set(new["choices"]))
        changes += [f"{flag} does not take {choice!r} any more" for choice in gone]
    return changes


def last_released() -> Api | None:
    """Return the list of the last release; None before the first release."""
    paths = sorted(RELEASED.glob("*.json"), key=lambda path: tuple(map(int, path.stem.split("."))))
    return json.loads(paths[-1].read_text(encoding="utf-8")) if paths else None


def as_text(api: Api) -> str:
    """Format a list as JSON with one line per name and flag, for readable diffs."""
    lines = [f'{{"version": {json.dumps(api["version"])},']
    lines += [' "deprecated": {', *_entries(api["deprecated"]), " },"]
    lines += [' "names": {', *_entries(api["names"]), " },", ' "commands": {']
    for place, (command, flags) in enumerate(api["commands"].items()):
        end = "" if place == len(api["commands"]) - 1 else ","
        lines += [f"  {json.dumps(command)}: {{", *(f" {line}" for line in _entries(flags)), f"  }}{end}"]
    return "\n".join([*lines, " }", "}", ""])


def _entries(values: Mapping[str, Any]) -> list[str]:
    lines = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    return [f"{line}," for line in lines[:-1]] + lines[-1:]


def main(arguments: list[str] | None = None) -> int:
    """Write or compare the list, see the module; return the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write the list of public names.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; status 1 if the list is not that of the sources"
    )
    parser.add_argument("--breaking", action="store_true", help="write a list with breaks, before the first release")
    parser.add_argument("--release", action="store_true", help="also freeze it as that of the present version")
    args = parser.parse_args(arguments)
    api, released = public_api(), last_released()
    written = json.loads(LIST.read_text(encoding="utf-8")) if LIST.exists() else None
    base = released or (None if args.breaking else written)
    broken = breaks(base, api) if base else []
    if args.check and not broken:
        if as_text(api) == LIST.read_text(encoding="utf-8"):
            return 0
        sys.stderr.write(f"The list of public names is not that of the sources: run `{COMMAND}`.\n")
        return 1
    if broken:
        hint = (
            "Deprecate each in a release before, see hf_captioners/deprecation.py."
            if released
            else f"Name them in CHANGELOG.md and run `{COMMAND} --breaking`, or undo them."
        )
        sys.stderr.write("\n".join([*broken, hint, ""]))
        return 1
    LIST.write_text(as_text(api), encoding="utf-8")
    if args.release:
        RELEASED.mkdir(exist_ok=True)
        with (RELEASED / f"{api['version']}.json").open("x", encoding="utf-8") as file:
            file.write(as_text(api))
    return 0


if __name__ == "__main__":
    sys.exit(main())
