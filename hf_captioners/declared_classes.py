"""What classes declare, read from their source files: fields, class variables, parameters. Nothing is imported.

Names that a person types are checked by it within a second; importing a configuration takes more than ten.
"""

import ast
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hf_captioners


@dataclass
class DeclaredClass:
    """A class as its source declares it, base classes of the same folder included.

    Attributes:
        fields: annotations of its fields by name; class variables are left out.
        constants: class variables whose values are literals; mappings and tuples are joined with those of bases.
        parameters: names of the parameters of `__init__`; of a dataclass, its fields.
        needed: fields without a default.
    """

    fields: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)
    needed: list[str] = field(default_factory=list)


def source_file(module: str) -> Path:
    """Return the file of a module of this package, without importing it.

    Args:
        module: name of the module after `hf_captioners.`, such as `modeling.configuration_visualgpt`.
    """
    parts = module.split(".")
    places = [Path(place, *parts).with_suffix(".py") for place in hf_captioners.__path__]
    return next((place for place in places if place.is_file()), places[0])


@functools.cache
def declared_class(file: Path, name: str) -> DeclaredClass:
    """Return what a class declares.

    Args:
        file: its source file.
        name: its name.

    Raises:
        ValueError: the file has no such class.
    """
    module = _module(file)
    node = next((one for one in module.body if isinstance(one, ast.ClassDef) and one.name == name), None)
    if node is None:
        raise ValueError(f"{file} has no class {name}.")
    found = DeclaredClass()
    for base in reversed(node.bases):
        place = _place_of(base, file, module)
        if place is not None:
            _add(found, declared_class(*place))
    _add(found, _own(node, file))
    return found


def _add(found: DeclaredClass, more: DeclaredClass) -> None:
    found.fields |= more.fields
    found.needed += [name for name in more.needed if name not in found.needed]
    found.parameters = more.parameters or found.parameters
    for name, value in more.constants.items():
        known = found.constants.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            value = known | value
        elif isinstance(known, tuple) and isinstance(value, tuple):
            value = (*known, *value)
        found.constants[name] = value


def _own(node: ast.ClassDef, file: Path) -> DeclaredClass:
    own = DeclaredClass()
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            own.parameters = [part.arg for part in (*one.args.args[1:], *one.args.kwonlyargs)]
        name, value = _assigned(one)
        if name is None:
            continue
        annotation = ast.unparse(one.annotation) if isinstance(one, ast.AnnAssign) else "ClassVar"
        if "ClassVar" not in annotation:
            own.fields[name] = annotation
            own.needed += [name] if value is None else []
        elif value is not None:
            try:
                own.constants[name] = _literal(value, file)
            except ValueError:  # computed
                continue
    return own


def _assigned(node: ast.stmt) -> tuple[str | None, ast.expr | None]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id, node.value
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value
    return None, None


def _literal(node: ast.expr, file: Path) -> Any:
    """Return the value of a literal, of a constant of the module, or of `NAME.__args__` of a `Literal`."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_literal(key, file): _literal(value, file) for key, value in pairs if key is not None}
    if isinstance(node, ast.Tuple):
        return tuple(value for one in node.elts for value in _entries(one, file))
    if isinstance(node, ast.Attribute) and node.attr == "__args__" and isinstance(node.value, ast.Name):
        chosen, place = _constant(node.value.id, file)
        if isinstance(chosen, ast.Subscript):
            value = _literal(chosen.slice, place)
            return value if isinstance(value, tuple) else (value,)
    if isinstance(node, ast.Name):
        return _literal(*_constant(node.id, file))
    return ast.literal_eval(node)


def _entries(node: ast.expr, file: Path) -> Sequence[Any]:
    return list(_literal(node.value, file)) if isinstance(node, ast.Starred) else [_literal(node, file)]


def _constant(name: str, file: Path) -> tuple[ast.expr, Path]:
    """Return the value of a constant of a module, which may import it from its folder, and where it stands."""
    for one in _module(file).body:
        known, value = _assigned(one)
        if known == name and value is not None:
            return value, file
        if isinstance(one, ast.ImportFrom) and one.level == 1 and one.module is not None:
            for alias in one.names:
                if name == (alias.asname or alias.name):
                    return _constant(alias.name, file.with_name(f"{one.module}.py"))
    raise ValueError(f"{file} has no constant {name}.")


def _place_of(base: ast.expr, file: Path, module: ast.Module) -> tuple[Path, str] | None:
    """Return file and name of a base class; None if it is not in this folder."""
    if not isinstance(base, ast.Name):
        return None
    if any(isinstance(one, ast.ClassDef) and one.name == base.id for one in module.body):
        return file, base.id
    for one in module.body:
        if isinstance(one, ast.ImportFrom) and one.level == 1 and one.module is not None:
            for alias in one.names:
                if base.id == (alias.asname or alias.name):
                    return file.with_name(f"{one.module}.py"), alias.name
    return None


def declared_constant(file: Path, name: str) -> Any:
    """Return the literal value of a constant of a module.

    Args:
        file: its source file.
        name: of the constant.

    Raises:
        ValueError: the file has no such constant, or its value is computed.
    """
    return _literal(*_constant(name, file))


@functools.cache
def _module(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
