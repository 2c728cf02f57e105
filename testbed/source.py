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


def modules_of(
    file: Path, module: str, name: str, *others: tuple[str, str]
) -> dict[str, tuple[str, str]]:
    """Name, and path and source, of each module of this repository that a function needs.

    The function is of ``module``, which is in ``file``; ``others`` are more names that it needs,
    each with its module in front.
    A source has the lines that bind the names that the function uses, directly or through others;
    all other lines are empty, so that line numbers stay.  TypeError names what no node has.
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
    """The lines of a file, and the top statements that bind each name."""
    text = file.read_text()
    bindings: dict[str, list[ast.stmt]] = {}
    for statement in ast.parse(text).body:
        for name in _names_of(statement):
            bindings.setdefault(name, []).append(statement)
    return text.splitlines(), bindings


def _names_of(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, _IMPORTS):
        if getattr(statement, "module", "") != "__future__":
            yield from (_bound_by(alias) for alias in statement.names)
    else:
        stored = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
        yield from {n.id for n in stored if isinstance(n.ctx, ast.Store)}


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])


def _globals_of(statement: ast.stmt, module: _Module) -> set[str]:
    """The names that a statement reads from its module, without those of annotations."""
    bare = _Bare().visit(copy.deepcopy(statement))
    if isinstance(bare, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
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
    """Removes annotations, which nobody evaluates in a node."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        self.generic_visit(node)
        value = node.value or ast.Constant(None)
        return ast.copy_location(ast.Assign([node.target], value, lineno=node.lineno), node)
