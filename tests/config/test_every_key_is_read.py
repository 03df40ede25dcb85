"""Every key of the schema is read somewhere in the package.

By the source: an attribute `.KEY` counts as a read of a section's key only where its object is
known to be that section, by an annotation or by a path of attributes that starts at a Config; so
does `"KEY"` as an argument beside the section itself.
"""

import ast
import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxtrain
from jaxtrain.config import Config, key_docs, schema

PACKAGE = Path(jaxtrain.__file__).parent
SECTIONS: dict[str, type] = {
    name: value
    for name, value in vars(schema).items()
    if isinstance(value, type) and dataclasses.is_dataclass(value)
}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def fields(section: type) -> dict[str, typing.Any]:
    return typing.get_type_hints(section)


def reads(tree: ast.Module) -> set[tuple[type, str]]:
    """The (section, key) pairs that a module reads."""
    return set(_Reader(tree).found)


class _Reader:
    """Walks a module with what is known of each name: the section that it holds."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: set[tuple[type, str]] = set()
        self.attributes = dict(_annotated_attributes(tree))
        self._walk(tree, {})

    def _walk(self, node: ast.AST, names: dict[str, type]) -> None:
        if isinstance(node, FUNCTIONS):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            own = {argument.arg: _section(argument.annotation) for argument in every}
            names = {n: s for n, s in names.items() if n not in own}
            names |= {n: s for n, s in own.items() if s is not None}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            self._bind(node.target.id, _section(node.annotation), names)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            holder = self._type(node.value, names)
            if holder is not None and node.attr in fields(holder):
                self.found.add((holder, node.attr))
        if isinstance(node, ast.Call):
            self._named(node, names)
        for child in ast.iter_child_nodes(node):
            self._walk(child, names)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value, names)

    def _named(self, call: ast.Call, names: dict[str, type]) -> None:
        """A function that gets a section together with the names of its keys reads those."""
        for holder in filter(None, (self._type(value, names) for value in call.args)):
            for value in call.args:
                if isinstance(value, ast.Constant) and value.value in fields(holder):
                    self.found.add((holder, str(value.value)))

    def _assign(self, target: ast.expr, value: ast.expr, names: dict[str, type]) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id, self._type(value, names), names)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for inner, item in zip(target.elts, value.elts, strict=False):
                self._assign(inner, item, names)

    @staticmethod
    def _bind(name: str, section: type | None, names: dict[str, type]) -> None:
        if section is None:
            names.pop(name, None)
        else:
            names[name] = section

    def _type(self, node: ast.expr, names: dict[str, type]) -> type | None:
        """The section that an expression is, if it is one."""
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.Attribute):
            holder = self._type(node.value, names)
            if holder is not None:
                hint = fields(holder).get(node.attr)
                return hint if hint in SECTIONS.values() else None
            # self.config of a class that annotates it; run.config of any object.
            return self.attributes.get(node.attr, Config if node.attr == "config" else None)
        return None


def _section(annotation: ast.expr | None) -> type | None:
    """The section that an annotation names: `OptimizerConfig`, `schema.OptimizerConfig`."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return SECTIONS.get(annotation.value.rpartition(".")[2])
    if isinstance(annotation, ast.Attribute):
        return SECTIONS.get(annotation.attr)
    return SECTIONS.get(annotation.id) if isinstance(annotation, ast.Name) else None


def _annotated_attributes(tree: ast.Module) -> Iterator[tuple[str, type]]:
    """The attributes that a class of the module annotates or fills with a section."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for item in ast.walk(node):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                section = _section(item.annotation)
                if section is not None:
                    yield item.target.id, section
            if not isinstance(item, ast.FunctionDef):
                continue
            own = {a.arg: _section(a.annotation) for a in [*item.args.args, *item.args.kwonlyargs]}
            for line in ast.walk(item):
                if (
                    isinstance(line, ast.Assign)
                    and isinstance(line.value, ast.Name)
                    and isinstance(line.targets[0], ast.Attribute)
                ):
                    section = own.get(line.value.id)
                    if section is not None:
                        yield line.targets[0].attr, section


def all_reads() -> set[tuple[type, str]]:
    """The (section, key) pairs that the package reads.

    In `config` itself only by what makes several configs of one.
    """
    found: set[tuple[type, str]] = set()
    for path in PACKAGE.rglob("*.py"):
        if "config" not in path.relative_to(PACKAGE).parts or path.name == "variants.py":
            found |= reads(ast.parse(path.read_text(), str(path)))
    return found


@pytest.fixture(scope="module")
def package_reads() -> set[tuple[type, str]]:
    return all_reads()


@pytest.mark.parametrize("name", key_docs())
def test_every_key_is_read(name: str, package_reads: set[tuple[type, str]]) -> None:
    *path, leaf = name.split(".")
    section: type = Config
    for part in path:
        section = fields(section)[part]
    assert (section, leaf) in package_reads, f"nothing reads {name}: use it or remove it"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(c: OptimizerConfig): return c.eps", {"eps"}),
        ("def f(c: 'schema.OptimizerConfig'): return c.eps", {"eps"}),
        ("def f(c: schema.OptimizerConfig): g(lambda: c.eps)", {"eps"}),
        ("def f(c: Config): return c.optimizer.eps", {"eps"}),
        ("def f(run): return run.config.optimizer.eps", {"eps"}),
        ("def f(c: Config):\n o = c.optimizer\n return o.eps", {"eps"}),
        ("def f(run):\n a, o = 1, run.config.optimizer\n return o.eps", {"eps"}),
        ("class A:\n c: OptimizerConfig\n def f(self): return self.c.eps", {"eps"}),
        (
            "class A:\n def __init__(self, c: OptimizerConfig): self._o = c\n"
            " def f(self): return self._o.eps",
            {"eps"},
        ),
        ("def f(c: OptimizerConfig): return g(c, 'eps', 'x')", {"eps"}),
        ("def f(c: OptimizerConfig): return g('eps')", set()),
        ("def f(c): return c.eps", set()),
        ("def f(c: ModelConfig): return c.eps", set()),
        ("def f(c: Config): return c.eps", set()),
        ("def f(c: Config): return c.model.eps", set()),
        ("def f(c: OptimizerConfig):\n c = other()\n return c.eps", set()),
        ("def f(c: OptimizerConfig): c.eps = 3", set()),
        ("def f(c: OptimizerConfig): return lambda c: c.eps", set()),
        ("def f(c: OptimizerConfig): 'c.eps'  # c.eps", set()),
    ],
)
def test_what_counts_as_a_read(source: str, expected: set[str]) -> None:
    found = reads(ast.parse(source))
    assert {key for section, key in found if section is schema.OptimizerConfig} == expected
