"""Mutants of a module: the same source with one small fault in one function, in a default of it, or in a constant.

The rule that holds here: a mutant is named by what it changes and where, in words that outlive a change of line
numbers, and made by giving a function that is loaded already the code of the faulty one, so that nothing is imported
anew.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

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


UNCHANGED = "nothing becomes anything"
_LONG = 100
_NEAR = 40


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        module: The module's name.
        where: The qualified name of the function that has it, or the name of the constant.
        line: Where.
        lines: Those of its module that run when the faulty statement does; of a constant, those that use it.
        fault: What was made of what.
        enter: Puts the fault into the loaded module, for the rest of this process.
    """

    module: str
    where: str
    line: int
    lines: frozenset[int]
    fault: str
    enter: Callable[[], None]

    @property
    def name(self) -> str:
        """The fault in words."""
        return f"{self.module.rpartition('.')[2]}.{self.where}: {self.fault}"


class _Seat(NamedTuple):
    """What holds a fault.

    Attributes:
        where: See `Mutant`.
        statement: The innermost one; for a default, the parameters.
        lines: Of the statement.
        constant: Whether it gives a constant of the module its value.
    """

    where: str
    statement: ast.stmt | ast.arguments
    lines: range
    constant: bool = False


class _Place(NamedTuple):
    """Where a module can be mutated, and what does it.

    Attributes:
        seat: What holds it.
        parent: Of the node; these two are changed.
        node: See `parent`.
        apply: Makes a variant of the fault; False where there is no such variant.
    """

    seat: _Seat
    parent: ast.AST
    node: ast.AST
    apply: Callable[[int], bool]


def function_of(module: str, qualname: str) -> FunctionType:
    """Return a loaded function by its qualified name, from under what decorates it."""
    found: Any = import_module(module)
    for part in qualname.split("."):
        found = vars(cast("object", found))[part]
    for wrapper in ("fget", "__wrapped__"):
        found = getattr(cast("object", found), wrapper, found)
    assert isinstance(found, FunctionType)
    return found


def mutants(module: str) -> Iterator[Mutant]:
    """Yield every mutant of a module, none by the name of another."""
    tree = ast.parse(_source(module))
    named: Counter[str] = Counter()
    for number, place in enumerate(_places(tree)):
        before = _words(place.seat.statement)
        lines = frozenset(
            _uses(tree, place.seat.where) if place.seat.constant else place.seat.lines
        )
        for variant in range(2):
            with _kept(place.parent), _kept(place.node):
                if not place.apply(variant):
                    continue
                fault = _fault(before, _words(place.seat.statement))
            named[f"{place.seat.where} {fault}"] += 1
            times = named[f"{place.seat.where} {fault}"]
            fault += f" (the {times}. time)" if times > 1 else ""
            enter = partial(_enter, module, number, variant)
            yield Mutant(module, place.seat.where, place.seat.lines[0], lines, fault, enter)


def unchanged(module: str) -> Mutant:
    """Return a mutant that is none: whoever kills it would kill any."""
    lines = frozenset(range(1, len(_source(module).split("\n"))))
    return Mutant(module, "", 0, lines, UNCHANGED, lambda: None)


@cache
def _source(module: str) -> str:
    """Return a module's text as it was when it was first asked for: it may change while mutants are tried."""
    return Path(str(import_module(module).__file__)).read_text("utf-8")


@contextmanager
def _kept(node: ast.AST) -> Generator[None]:
    """Undo on leaving what was done to a node's fields."""
    fields: dict[str, object] = vars(node)
    before = {
        name: [*cast("list[object]", value)] if isinstance(value, list) else value
        for name, value in fields.items()
    }
    yield
    vars(node).update(before)


def _fault(before: str, after: str) -> str:
    """Say what was made of what; of long statements only what is near."""
    if before == after:
        return f"`{before[:_LONG]}` becomes nothing"
    if max(len(before), len(after)) > _LONG:
        same = _same(before, after)
        left = _same(before[:same:-1], after[:same:-1])
        start = max(0, same - _NEAR)
        before = before[start : max(same, len(before) - left) + _NEAR]
        after = after[start : max(same, len(after) - left) + _NEAR]
    return f"`{before}` becomes `{after}`"


def _same(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their front."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _enter(module: str, number: int, variant: int) -> None:
    """Make the fault in the loaded module."""
    tree = ast.parse(_source(module))
    place = next(islice(_places(tree), number, None))
    place.apply(variant)
    ast.fix_missing_locations(tree)
    space = vars(import_module(module))
    if place.seat.constant:
        _give_all(
            space, place.seat.where, _value_of(cast("ast.Assign", place.seat.statement).value)
        )
        return
    function = function_of(module, place.seat.where)
    if isinstance(place.seat.statement, ast.arguments):
        _give_defaults(function, place.seat.statement)
        return
    code = _code_of(compile(tree, module, "exec", dont_inherit=True), place.seat.where)
    assert code.co_freevars == function.__code__.co_freevars
    function.__code__ = code


def _value_of(node: ast.expr) -> CodeType:
    return compile(ast.Expression(node), "a constant", "eval", dont_inherit=True)


def _give_all(space: dict[str, Any], name: str, made: CodeType) -> None:
    """Give a constant another value, also where it was imported from its module."""
    before, after = space[name], eval(made, space)  # noqa: S307  # of the project's own source
    for module in [*sys.modules.values()]:
        if getattr(module, "__dict__", {}).get(name) is before:
            vars(module)[name] = after


def _give_defaults(function: FunctionType, arguments: ast.arguments) -> None:
    space = function.__globals__
    function.__defaults__ = tuple(eval(_value_of(one), space) for one in arguments.defaults)  # noqa: S307  # own source
    function.__kwdefaults__ = {
        argument.arg: eval(_value_of(one), space)  # noqa: S307  # own source
        for argument, one in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if one is not None
    }


def _words(statement: ast.stmt | ast.arguments) -> str:
    """Return a statement, without those that it is made of, in one line."""
    if isinstance(statement, ast.If):
        return f"if {ast.unparse(statement.test)}"
    if isinstance(statement, ast.While):
        return f"while {ast.unparse(statement.test)}"
    if isinstance(statement, ast.For):
        return f"for {ast.unparse(statement.target)} in {ast.unparse(statement.iter)}"
    return ast.unparse(statement).partition("\n")[0]


def _lines(statement: ast.stmt) -> range:
    """Return the lines that run when a statement does, without those of the statements inside it."""
    last: ast.stmt | ast.expr = statement
    if isinstance(statement, ast.If | ast.While):
        last = statement.test
    elif isinstance(statement, ast.For):
        last = statement.iter
    return range(statement.lineno, (last.end_lineno or 0) + 1)


def _uses(tree: ast.Module, name: str) -> Iterator[int]:
    """Yield the lines of functions that use a constant."""
    for function in ast.walk(tree):
        for node in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
            if isinstance(node, ast.Name) and node.id == name:
                yield node.lineno


def _places(tree: ast.Module) -> Iterator[_Place]:
    """Yield every place that can be mutated."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            seat = _Seat(node.targets[0].id, node, _lines(node), constant=True)
            if any(_uses(tree, seat.where)):
                yield from _within(node, node.value, seat)
    yield from _inside(tree, "")


def _inside(node: ast.Module | ast.ClassDef, name: str) -> Iterator[_Place]:
    for child in node.body:
        inner = f"{name}.{getattr(child, 'name', '')}".removeprefix(".")
        if isinstance(child, ast.ClassDef):
            yield from _inside(child, inner)
        elif isinstance(child, ast.FunctionDef):
            lines = range(child.body[0].lineno, (child.end_lineno or 0) + 1)
            for default in [*child.args.defaults, *child.args.kw_defaults]:
                if default is not None:
                    yield from _within(child.args, default, _Seat(inner, child.args, lines))
            for statement in _body(child):
                yield from _within(child, statement, _Seat(inner, statement, lines))


def _body(function: ast.FunctionDef) -> list[ast.stmt]:
    """Return a function's statements without its docstring."""
    return function.body[1:] if ast.get_docstring(function) is not None else function.body


def _within(parent: ast.AST, node: ast.AST, seat: _Seat) -> Iterator[_Place]:
    if _is_text(node):
        return
    if isinstance(node, ast.stmt):
        seat = _Seat(seat.where, node, _lines(node))
    for apply in _faults(parent, node):
        yield _Place(seat, parent, node, apply)
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "args"} and not isinstance(node, ast.Call):
            continue
        for child in _several(value):
            if isinstance(child, ast.AST):
                yield from _within(node, child, seat)


def _is_text(node: ast.AST) -> bool:
    """Whether a node is words for people: a docstring, a message."""
    if isinstance(node, ast.JoinedStr):
        return True
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _faults(parent: ast.AST, node: ast.AST) -> Iterator[Callable[[int], bool]]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED:
        yield partial(_only, lambda: _compare(node))
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _COUNTED:
        yield partial(_only, lambda: _count(node))
    if isinstance(node, ast.BoolOp):
        yield partial(_only, lambda: _bool(node))
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield partial(_constant, node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield partial(_only, lambda: _replace(parent, node, node.operand))
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Constant):
        yield partial(_only, lambda: _swap(node))
    if isinstance(node, ast.Return) and ast.unparse(node) not in {"return", "return None"}:
        yield partial(_only, lambda: _return(node))
    if _can_go(node):
        yield partial(_only, lambda: _replace(parent, node, ast.Pass()))


def _only(change: Callable[[], None], variant: int) -> bool:
    """Make the only variant that there is."""
    if not variant:
        change()
    return not variant


def _compare(node: ast.Compare) -> None:
    node.ops[0] = _COMPARED[type(node.ops[0])]()


def _count(node: ast.BinOp | ast.AugAssign) -> None:
    node.op = _COUNTED[type(node.op)]()


def _bool(node: ast.BoolOp) -> None:
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


def _constant(node: ast.Constant, variant: int) -> bool:
    """Turn a truth value, or make a number one more or one less."""
    if isinstance(node.value, bool):
        node.value = not node.value
        return not variant
    node.value = cast("int", node.value) + (-1 if variant else 1)
    return True


def _swap(node: ast.If | ast.While | ast.IfExp) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


def _return(node: ast.Return) -> None:
    node.value = ast.Constant(None)


def _can_go(node: ast.AST) -> bool:
    """Whether a statement can be left out without a name being missing."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and "super()" not in ast.unparse(node)
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
