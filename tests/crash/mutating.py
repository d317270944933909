"""Mutants of a module: the same source with one small fault in one function.

The rule that holds here: a mutant is named by what it changes and where, in words that outlive a change of line
numbers, and made by giving a function that is loaded already the code of the faulty one, so that nothing is imported
anew.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        module: The module's name.
        function: The qualified name of the function that has it.
        line: Where.
        fault: What was made of what.
        code: Of the faulty function.
    """

    module: str
    function: str
    line: int
    fault: str
    code: CodeType

    @property
    def name(self) -> str:
        """The fault in words."""
        return f"{self.module.rpartition('.')[2]}.{self.function}: {self.fault}"

    def enter(self) -> None:
        """Put the fault into the loaded function, for the rest of this process."""
        function_of(self.module, self.function).__code__ = self.code


def function_of(module: str, qualname: str) -> FunctionType:
    """Return a loaded function by its qualified name, from under what decorates it."""
    found: Any = import_module(module)
    for part in qualname.split("."):
        found = vars(cast("object", found))[part]
    for wrapper in ("fget", "__wrapped__"):
        found = getattr(cast("object", found), wrapper, found)
    assert isinstance(found, FunctionType)
    return found


def places(module: str) -> list[tuple[str, int]]:
    """Return the function and the number of every place at which a module can be mutated."""
    found = _places(ast.parse(_source(module)))
    return [(function, number) for number, (function, _, _) in enumerate(found)]


def mutant(module: str, place: int, variant: int) -> Mutant | None:
    """Return one mutant; None where that place has no such variant, or no function can take it."""
    tree = ast.parse(_source(module))
    function, node, apply = list(_places(tree))[place]
    before = ast.unparse(node).partition("\n")[0]
    after = apply(variant)
    if after is None:
        return None
    code = _code_of(compile(ast.fix_missing_locations(tree), module, "exec"), function)
    if code.co_freevars != function_of(module, function).__code__.co_freevars:
        return None
    line = getattr(node, "lineno", 0)
    return Mutant(module, function, line, f"`{before}` becomes `{after}`", code)


def marked(module: str, function: str) -> CodeType:
    """Return a function's code that first adds its name to `_called_`, a set among the module's globals."""
    tree = ast.parse(_source(module))
    node: ast.AST = tree
    for part in function.split("."):
        inside = [one for one in ast.iter_child_nodes(node) if getattr(one, "name", "") == part]
        node = inside[-1]
    assert isinstance(node, ast.FunctionDef)
    node.body[:0] = ast.parse(f"_called_.add({function!r})").body
    return _code_of(compile(ast.fix_missing_locations(tree), module, "exec"), function)


def _source(module: str) -> str:
    return Path(str(import_module(module).__file__)).read_text("utf-8")


def _places(tree: ast.Module) -> Iterator[tuple[str, ast.AST, Callable[[int], str | None]]]:
    """Yield every place that can be mutated: the function, the node, and what mutates it."""
    yield from _inside(tree, "", in_function=False)


def _inside(
    node: ast.AST, name: str, *, in_function: bool
) -> Iterator[tuple[str, ast.AST, Callable[[int], str | None]]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef) and not in_function:
            inner = f"{name}.{child.name}" if name else child.name
            if isinstance(child, ast.ClassDef):
                yield from _inside(child, inner, in_function=False)
            else:
                for statement in _body(child):
                    yield from _within(child, statement, inner)
        elif not in_function and isinstance(child, ast.If):
            continue  # what is for type checkers alone


def _body(function: ast.FunctionDef) -> list[ast.stmt]:
    """Return a function's statements without its docstring."""
    return function.body[1:] if ast.get_docstring(function) is not None else function.body


def _within(
    parent: ast.AST, node: ast.AST, name: str
) -> Iterator[tuple[str, ast.AST, Callable[[int], str | None]]]:
    if _is_text(node):
        return
    for apply in _faults(parent, node):
        yield name, node, apply
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "args"} and not isinstance(node, ast.Call):
            continue
        for child in _several(value):
            if isinstance(child, ast.AST):
                yield from _within(node, child, name)


def _is_text(node: ast.AST) -> bool:
    """Whether a node is words for people: a docstring, a message."""
    if isinstance(node, ast.JoinedStr):
        return True
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _faults(parent: ast.AST, node: ast.AST) -> Iterator[Callable[[int], str | None]]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED:
        yield lambda variant: _first(variant, node, lambda: _compare(node))
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _COUNTED:
        yield lambda variant: _first(variant, node, lambda: _count(node))
    if isinstance(node, ast.BoolOp):
        yield lambda variant: _first(variant, node, lambda: _bool(node))
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield lambda variant: _constant(variant, node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield lambda variant: _first(variant, node, lambda: _replace(parent, node, node.operand))
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Constant):
        yield lambda variant: _first(variant, node, lambda: _swap(node))
    if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield lambda variant: _first(variant, node, lambda: _return(node))
    if _can_go(node):
        yield lambda variant: _first(variant, node, lambda: _replace(parent, node, ast.Pass()))


def _first(variant: int, node: ast.AST, change: Callable[[], None]) -> str | None:
    """Make the only variant that there is."""
    if variant:
        return None
    change()
    if isinstance(node, ast.expr | ast.Return | ast.AugAssign):
        return ast.unparse(node)
    if isinstance(node, ast.If | ast.While):
        return f"not: {ast.unparse(node.test)}"
    return "nothing"


def _compare(node: ast.Compare) -> None:
    node.ops[0] = _COMPARED[type(node.ops[0])]()


def _count(node: ast.BinOp | ast.AugAssign) -> None:
    node.op = _COUNTED[type(node.op)]()


def _bool(node: ast.BoolOp) -> None:
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


def _constant(variant: int, node: ast.Constant) -> str | None:
    if isinstance(node.value, bool):
        if variant:
            return None
        node.value = not node.value
    elif isinstance(node.value, int):
        node.value += -1 if variant else 1
    return ast.unparse(node)


def _swap(node: ast.If | ast.While | ast.IfExp) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


def _return(node: ast.Return) -> None:
    node.value = ast.Constant(None)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _can_go(node: ast.AST) -> bool:
    """Whether a statement can be left out without a name being missing."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break)


def _replace(parent: ast.AST, node: ast.AST, other: ast.AST) -> None:
    for field, value in ast.iter_fields(parent):
        if value is node:
            setattr(parent, field, other)
        elif any(one is node for one in _several(value)):
            setattr(parent, field, [other if one is node else one for one in _several(value)])


def _several(value: object) -> list[Any]:
    """Return what a field of a node holds as a list."""
    return [*cast("Iterable[Any]", value)] if isinstance(value, list) else [value]


def _code_of(code: CodeType, qualname: str) -> CodeType:
    """Return the code of a function from that of its module."""
    found = code
    for part in qualname.split("."):
        inner = [c for c in found.co_consts if isinstance(c, CodeType) and c.co_name == part]
        found = inner[-1]
    return found
