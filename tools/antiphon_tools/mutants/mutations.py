"""Defines mutation operators for a file's syntax tree and selects mutants at random.

A mutant replaces one span of the source, so the rest of the file and its line numbers do not
change. Annotations, assertions, raised errors, log calls, decorators and f-strings are not mutated.
The nodes of f-strings have no positions before Python 3.12.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_BRANCHES = (ast.If, ast.IfExp, ast.While, ast.BoolOp, ast.Match, ast.Compare, ast.comprehension)
_COMPARISONS: Mapping[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: Mapping[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.FloorDiv(),
    ast.FloorDiv: ast.Mult(),
    ast.Div: ast.Mult(),
}
_TWINS = {"any": "all", "all": "any", "min": "max", "max": "min"}
_HOLDERS = {"config", "limits", "gateway", "stage"}
_LOGGERS = {"log", "logger", "logging"}

Siblings = Mapping[str, tuple[str, ...]]
"""Maps the name of a setting to the other settings with the same class and type."""


_Change = tuple[str, ast.expr | ast.stmt, ast.expr | ast.stmt, str]
"""An operator, the first and last node that it replaces, and the replacement."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutation of a file, which replaces the bytes `source[start:stop]` with `after`."""

    path: Path
    operator: str
    line: int
    start: int
    stop: int
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        """Return the content of the file with the mutation."""
        return source[: self.start] + self.after.encode() + source[self.stop :]

    def __str__(self) -> str:
        before, after = (" ".join(each.split()) for each in (self.before, self.after))
        return f"{self.path}:{self.line} {self.operator}: {before} -> {after}"


def mutants_of(path: Path, source: bytes, siblings: Siblings) -> list[Mutant]:
    """Return all mutants of a file in order. A file without branches has no mutants."""
    tree = ast.parse(source)
    if not any(isinstance(node, _BRANCHES) for node in ast.walk(tree)):
        return []
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    mutants = []
    for node in _mutable(tree):
        for operator, first, last, after in _changes(node, siblings):
            assert last.end_lineno is not None
            assert last.end_col_offset is not None
            start = starts[first.lineno - 1] + first.col_offset
            stop = starts[last.end_lineno - 1] + last.end_col_offset
            before = source[start:stop].decode()
            mutants.append(Mutant(path, operator, first.lineno, start, stop, before, after))
    return mutants


def settings_of(sources: Iterable[bytes]) -> dict[str, tuple[str, ...]]:
    """Return a mapping from each setting's name to the settings with the same type in its class."""
    found: dict[str, set[str]] = {}
    for source in sources:
        for each in ast.walk(ast.parse(source)):
            if isinstance(each, ast.ClassDef) and each.name.endswith(("Config", "Limits")):
                for alike in _fields_by_type(each).values():
                    for name in alike:
                        found[name] = found.get(name, alike) & alike
    return {name: tuple(sorted(alike - {name})) for name, alike in found.items()}


def _fields_by_type(declared: ast.ClassDef) -> dict[str, set[str]]:
    fields: dict[str, set[str]] = defaultdict(set)
    for each in declared.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            fields[ast.unparse(each.annotation)].add(each.target.id)
    return fields


def draw(mutants: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """Select mutants from as many files as possible.

    The file is selected first, then an operator that applies to it, and then the position.
    Otherwise, large files and common operators would dominate the selection.
    """
    chance = random.Random(seed)
    by_file: dict[Path, dict[str, list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    for each in mutants:
        by_file[each.path][each.operator].append(each)
    drawn: list[Mutant] = []
    while by_file and len(drawn) < count:
        for path in chance.sample(sorted(by_file), len(by_file)):
            operators = by_file[path]
            operator = chance.choice(sorted(operators))
            drawn.append(operators[operator].pop(chance.randrange(len(operators[operator]))))
            if not operators[operator]:
                del operators[operator]
            if not operators:
                del by_file[path]
    return drawn[:count]


def _mutable(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that may be changed, starting with the outermost one."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_left_alone(child):
                yield from _mutable(child)


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        node = node.value
        called = node.func if isinstance(node, ast.Call) else None
        logs = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name)
        return isinstance(node, ast.Constant) or (
            logs and ast.unparse(called.value) in _LOGGERS  # type: ignore[union-attr]
        )
    return isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom)


def _changes(node: ast.AST, siblings: Siblings) -> Iterator[_Change]:
    """Yield the changes that apply to a node."""
    match node:
        case ast.Compare(left, [operator], [right]):
            for other in _COMPARISONS[type(operator)]:
                yield "comparison", node, node, _written(ast.Compare(left, [other()], [right]))
        case ast.BoolOp(operator, values):
            other_one = ast.And() if isinstance(operator, ast.Or) else ast.Or()
            yield "and/or", node, node, _written(ast.BoolOp(other_one, values))
            for at in range(len(values)):
                rest = values[:at] + values[at + 1 :]
                kept = rest[0] if len(rest) == 1 else ast.BoolOp(operator, rest)
                yield "operand", node, node, _written(kept)
        case ast.UnaryOp(ast.Not(), operand):
            yield "not", node, node, _written(operand)
        case ast.BinOp(left, operator, right) if type(operator) in _ARITHMETIC:
            changed = ast.BinOp(left, _ARITHMETIC[type(operator)], right)
            yield "arithmetic", node, node, _written(changed)
        case ast.Constant(bool(value)):
            yield "constant", node, node, str(not value)
        case ast.Constant(int(number)):
            for step in (-1, 1):
                yield "constant", node, node, _written(ast.Constant(number + step))
        case ast.Attribute(value, name) if name in siblings and _holds_settings(value):
            for other_name in siblings[name]:
                yield "setting", node, node, _written(ast.Attribute(value, other_name))
        case ast.Name(name) if name in _TWINS:
            yield "twin", node, node, _TWINS[name]
        case ast.IfExp(test, body, orelse):
            yield "branch", node, node, _written(ast.IfExp(test, orelse, body))
        case ast.If(test) | ast.While(test) if not isinstance(test, ast.Compare | ast.BoolOp):
            if not isinstance(test, ast.UnaryOp | ast.Constant):
                yield "branch", test, test, _written(ast.UnaryOp(ast.Not(), test))
        case ast.Call(_, arguments):
            yield from _swapped(arguments)
        case ast.Expr(ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete():
            yield "statement", node, node, "pass"
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield "statement", node, node, "pass"
        case ast.Break() | ast.Continue() | ast.Return(None):
            yield "statement", node, node, "pass"


def _holds_settings(value: ast.expr) -> bool:
    return ast.unparse(value).rpartition(".")[2].lstrip("_") in _HOLDERS


def _swapped(arguments: list[ast.expr]) -> Iterator[_Change]:
    """Yield swaps of two adjacent arguments that are both names or attributes."""
    for one, other in itertools.pairwise(arguments):
        texts = ast.unparse(one), ast.unparse(other)
        plain = all(isinstance(each, ast.Name | ast.Attribute) for each in (one, other))
        if plain and texts[0] != texts[1] and not any(map(_is_type, texts)):
            yield "argument", one, other, ", ".join(reversed(texts))


def _is_type(name: str) -> bool:
    last = name.rpartition(".")[2].lstrip("_")
    return hasattr(builtins, last) or (last[0].isupper() and not last.isupper())


def _written(node: ast.expr) -> str:
    """Return the source of an expression, in parentheses if necessary."""
    text = ast.unparse(ast.fix_missing_locations(ast.Expr(node)))
    return text if isinstance(node, ast.Constant | ast.Name | ast.Attribute) else f"({text})"
