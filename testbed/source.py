# SPDX-License-Identifier: Apache-2.0
"""The part of a module's source that one of its functions needs, to run it elsewhere."""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import importlib.util
import symtable
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["AT_NODES", "MODELS", "modules_of", "remote_functions"]

ROOT = Path(__file__).parents[1]
# what the nodes of a lab have
AT_NODES = {"nfsrdma_tools", "bcc", "cffi", "psutil", "pyroute2", "pyverbs"}
# of tests/wire: those that testbed/peers uses
MODELS = ("nfs3", "notices", "rdma2003", "rdma5666", "rpcrdma", "siphash")
_PACKAGES = ("testbed.node", "testbed.peers")
_OWN = (*_PACKAGES, *(f"wire.{name}" for name in MODELS))
_IMPORTS = (ast.Import, ast.ImportFrom)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PLACES = (ast.Attribute, ast.Subscript)
# annotations by which @dataclass tells what is not a field, or not in order
_MARKS = {"ClassVar", "InitVar", "KW_ONLY"}


def modules_of(
    file: Path, module: str, name: str, *others: tuple[str, str]
) -> dict[str, tuple[str, str]]:
    """Name, and path and source, of each module of this repository that a function needs.

    The function is of ``module``, which is in ``file``; ``others`` are more names that it needs,
    each with its module in front.
    A source has the lines that bind the names that the function uses, directly or through others,
    and the lines that change an object of such a name by an item, an attribute or a method; all
    other lines are empty, so that line numbers stay.  What a call or a decorator registers
    elsewhere is not seen.  TypeError names what no node has.
    """
    program = _Program()
    if not _is_at_nodes(module):
        program.modules[module] = _Module(module, file)
    for place, needed in ((module, name), *others):
        if not _is_at_nodes(place):
            program.add(place, needed)
    return {place: (_relative(m.file), m.source()) for place, m in program.modules.items()}


def remote_functions(file: Path) -> list[str]:
    """The names of the functions of a module that run in a node."""
    module = _Module("", file)
    return [
        name
        for name, (statement, *_) in module.bindings.items()
        if any(module.is_remote(d) for d in getattr(statement, "decorator_list", []))
    ]


def _relative(file: Path) -> str:
    return str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file)


def _is_at_nodes(module: str) -> bool:
    top = module.partition(".")[0]
    own = any(module == name or module.startswith(f"{name}.") for name in _OWN)
    return own or top in AT_NODES or top in sys.stdlib_module_names


class _Module:
    """A file, and the statements and names of it that a function needs."""

    def __init__(self, name: str, file: Path) -> None:
        self.name, self.file = name, file
        self.lines, self.bindings = _parsed(file)
        self.kept: dict[int, ast.stmt] = {}
        self.imported: dict[int, tuple[ast.stmt, list[ast.alias]]] = {}
        self.names: set[str] = set()

    def source(self) -> str:
        """The lines of the needed statements; the others are empty."""
        lines = [""] * len(self.lines)
        for statement in self.kept.values():
            for number in range(_first_line(statement) - 1, statement.end_lineno or 0):
                lines[number] = self.lines[number]
            for decorator in getattr(statement, "decorator_list", []):
                if self.is_remote(decorator):
                    for number in range(decorator.lineno - 1, decorator.end_lineno):
                        lines[number] = ""
        for number, (statement, aliases) in self.imported.items():
            alone = copy.copy(statement)
            alone.names = aliases  # type: ignore[attr-defined]
            lines[number - 1] = ast.unparse(alone)
        return "\n".join(lines) + "\n"

    def is_remote(self, decorator: ast.expr) -> bool:
        """Whether it is ``on`` of testbed/remote.py."""
        called = decorator.func if isinstance(decorator, ast.Call) else None
        bound = self.bindings.get(called.id, []) if isinstance(called, ast.Name) else []
        return any(isinstance(s, ast.ImportFrom) and s.module == "testbed.remote" for s in bound)


class _Program:
    """The modules of a function, found from name to name."""

    def __init__(self) -> None:
        self.modules: dict[str, _Module] = {}

    def add(self, module: str, name: str) -> None:
        """Add what binds a name of a module, and all that this needs."""
        if module not in self.modules:
            self.modules[module] = _Module(module, _file_of(module))
        here = self.modules[module]
        if name in here.names:
            return
        here.names.add(name)
        bound = here.bindings.get(name, [])
        if not bound and (name == "__file__" or not hasattr(builtins, name)):
            raise TypeError(f"{_relative(here.file)}: no node knows {name}: bind it in the module")
        for statement in bound:
            if isinstance(statement, _IMPORTS):
                self._import(here, statement, name)
            else:
                self._keep(here, statement)

    def _keep(self, here: _Module, statement: ast.stmt) -> None:
        below = getattr(statement, "decorator_list", [])[1:]
        if any(here.is_remote(decorator) for decorator in below):
            raise TypeError(
                f"{_relative(here.file)}:{statement.lineno}: a decorator above @on would run here "
                "and in the node: expected @on above all others"
            )
        here.kept[statement.lineno] = statement
        for other in sorted(_globals_of(statement, here)):
            self.add(here.name, other)

    def _import(self, here: _Module, statement: ast.stmt, name: str) -> None:
        (alias,) = (a for a in statement.names if _bound_by(a) == name)  # type: ignore[attr-defined]
        _, aliases = here.imported.setdefault(statement.lineno, (statement, []))
        aliases.append(alias)
        module = statement.module or "" if isinstance(statement, ast.ImportFrom) else alias.name
        if _is_at_nodes(module) or _is_at_nodes(f"{module}.{alias.name}"):
            return
        is_name = isinstance(statement, ast.ImportFrom) and not statement.level
        if not is_name or not _is_ours(module) or _is_ours(f"{module}.{alias.name}"):
            raise TypeError(
                f"{_relative(here.file)}:{statement.lineno}: no node has {module}, which a "
                f"function needs for {name}: expected the standard library, "
                f"{', '.join((*_PACKAGES, *sorted(AT_NODES)))}, or 'from MODULE import NAME' of "
                "this repository"
            )
        self.add(module, alias.name)


def _is_ours(module: str) -> bool:
    try:
        return _file_of(module).is_relative_to(ROOT)
    except (ModuleNotFoundError, TypeError):
        return False


def _file_of(module: str) -> Path:
    loaded = getattr(sys.modules.get(module), "__file__", None)
    spec = None if loaded else importlib.util.find_spec(module)
    file = loaded or (spec.origin if spec else None)
    if not file or not file.endswith(".py"):
        raise TypeError(f"{module} has no source that a node could get")
    return Path(file)


@functools.cache
def _parsed(file: Path) -> tuple[list[str], dict[str, list[ast.stmt]]]:
    """The lines of a file, and the top statements that bind or change each name."""
    text = file.read_text()
    statements = ast.parse(text).body
    bindings: dict[str, list[ast.stmt]] = {}
    for statement in statements:
        for name in dict.fromkeys(_names_of(statement)):
            bindings.setdefault(name, []).append(statement)
    for statement in statements:
        for name in set(_changed_by(statement)):
            bound = bindings.get(name, [])
            # changes of an imported module are of the process
            if statement not in bound and not any(isinstance(s, _IMPORTS) for s in bound):
                bound.append(statement)
    # not splitlines(), which also ends a line at a form feed or U+2028 in a string
    return text.split("\n"), bindings


def _names_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, _DEFINITIONS):
        yield node.name
    elif isinstance(node, _IMPORTS):
        if getattr(node, "module", "") != "__future__":
            yield from (_bound_by(alias) for alias in node.names)
    elif isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Store):
            yield node.id
    else:
        for child in ast.iter_child_nodes(node):
            yield from _names_of(child)


def _changed_by(node: ast.AST) -> Iterator[str]:
    """The names of objects of which a statement sets an item or an attribute, or calls a method."""
    if isinstance(node, _DEFINITIONS):
        return
    called = node.value if isinstance(node, ast.Expr) else None
    place = called.func if isinstance(called, ast.Call) else node
    if isinstance(place, _PLACES) and (called or not isinstance(place.ctx, ast.Load)):
        inner: ast.expr = place
        while isinstance(inner, (*_PLACES, ast.Call)):
            inner = inner.func if isinstance(inner, ast.Call) else inner.value
        if isinstance(inner, ast.Name):
            yield inner.id
    for child in ast.iter_child_nodes(node):
        yield from _changed_by(child)


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])


def _globals_of(statement: ast.stmt, module: _Module) -> set[str]:
    """The names that a statement reads from its module, without those of annotations."""
    bare = _Bare().visit(copy.deepcopy(statement))
    if isinstance(bare, _DEFINITIONS):
        bare.decorator_list = [d for d in bare.decorator_list if not module.is_remote(d)]
    table = symtable.symtable(ast.unparse(bare), str(module.file), "exec")
    return set(_referenced(table, top=True))


def _referenced(table: symtable.SymbolTable, top: bool = False) -> Iterator[str]:
    for symbol in table.get_symbols():
        # symtable takes each table of the name "top" for a module: its locals are global, too
        is_global = top or (symbol.is_global() and not symbol.is_local())
        if symbol.is_declared_global() or (symbol.is_referenced() and is_global):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _referenced(child)


class _Bare(ast.NodeTransformer):
    """Removes annotations, which no node evaluates, and keeps the marks of data classes."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        marks = [
            inner
            for inner in ast.walk(node.annotation)
            if isinstance(inner, (ast.Name, ast.Attribute))
            and (inner.id if isinstance(inner, ast.Name) else inner.attr) in _MARKS
        ]
        self.generic_visit(node)
        value = ast.Tuple([node.value or ast.Constant(None), *marks], ast.Load())
        return ast.copy_location(ast.Assign([node.target], value, lineno=node.lineno), node)
