# SPDX-License-Identifier: Apache-2.0
"""The module's parameters: their descriptions from modinfo, requested values, values in effect.

Descriptions end in ``LOW to HIGH (default VALUE)``, as kmod/params.c writes them; those of
switches and names have no bounds.  The values of two parameters are names of personalities.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nfsrdma_tools.errors import UsageError
from nfsrdma_tools.host.kernel_modules import ModuleFile
from nfsrdma_tools.host.nfs.personality import TABLE
from nfsrdma_tools.personalities import PERSONALITIES

__all__ = ["Parameter", "changed", "checked", "is_off", "known"]

_LINE = re.compile(r"(?P<name>\w+):(?P<text>.*?)(?: \((?P<kind>\w+)\))?", re.DOTALL)
_BOUNDS = re.compile(r"^(?P<text>.*), (?P<low>\d+) to (?P<high>\d+)$", re.DOTALL)
_DEFAULT = re.compile(r"^(?P<text>.*) \(default (?P<default>[^)]*)\)$", re.DOTALL)
# the kernel gets all parameters as one string and splits it at blanks
_VALUE = re.compile(r"[A-Za-z0-9_.:,-]{0,64}")
# values that kstrtobool accepts, and how the kernel prints them
_SWITCH = {"y": "Y", "yes": "Y", "1": "Y", "on": "Y", "n": "N", "no": "N", "0": "N", "off": "N"}
# one personality, and a list of them
_ONE, _LIST = "personality", "server_personalities"
_TABLE = TABLE.name


@dataclass(frozen=True)
class Parameter:
    """A parameter; ``low`` and ``high`` are None if its description has no bounds."""

    name: str
    text: str
    default: str = ""
    low: int | None = None
    high: int | None = None
    kind: str = ""
    """The kernel's name of its type: ``uint``, ``bool``, ``charp``; "" if modinfo has none."""

    @property
    def bounds(self) -> str:
        """The accepted values as text: ``2 to 1024``, ``0, or 16 to 512``, ``Y or N``, or ""."""
        if self.kind == "bool":
            return "Y or N"
        if self.name in (_ONE, _LIST):
            return (" or " if self.name == _ONE else ",").join(PERSONALITIES)
        if self.low is None:
            return ""
        beside = f"{self.default}, or " if not self.takes(self.default, beside=False) else ""
        return f"{beside}{self.low} to {self.high}"

    def takes(self, value: str, beside: bool = True) -> bool:
        """Whether a value is in bounds; ``beside`` also accepts the default, such as 0."""
        if self.kind == "bool":
            return value.lower() in _SWITCH
        if self.name == _ONE:
            return value in PERSONALITIES
        if self.name == _LIST:
            # the kernel skips empty names
            return set(value.split(",")) <= {*PERSONALITIES, ""}
        if self.low is None or self.high is None or (beside and value == self.default):
            return True
        return value.isdecimal() and self.low <= int(value) <= self.high

    def shown(self, value: str) -> str:
        """An accepted value as the kernel prints it."""
        if self.name == _LIST:
            return ",".join(name for name in PERSONALITIES if name in value.split(","))
        return _SWITCH[value.lower()] if self.kind == "bool" else value


def known(file: ModuleFile) -> dict[str, Parameter]:
    """The parameters of a module by name, in modinfo's order."""
    return {parameter.name: parameter for parameter in map(_parameter, file.parameters)}


def checked(settings: Iterable[str], file: ModuleFile) -> dict[str, str]:
    """Parse ``name=value`` settings; returns the values as the kernel prints them.

    UsageError if ``file`` does not accept a setting.  A name may be empty, such as the server's.
    """
    parameters, values = known(file), {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if name not in parameters:
            hint = f"use one of {', '.join(parameters)}"
            raise UsageError(f"the module has no parameter {name!r}", hint)
        empty = not value and parameters[name].kind != "charp"
        if not equals or empty or not _VALUE.fullmatch(value):
            raise UsageError(
                f"{setting!r} is not a setting", "write NAME=VALUE, such as credits=64"
            )
        if name == _TABLE:
            hint = f"use nfsrdma mount --personality, or write it to {TABLE} of the loaded module"
            raise UsageError(f"{name} is a table, which has no value at load", hint)
        if not parameters[name].takes(value):
            default = parameters[name].default or "(empty)"
            hint = f"use {parameters[name].bounds}; the default is {default}"
            raise UsageError(f"{name}={value} is invalid", hint)
        values[name] = parameters[name].shown(value)
    return values


def is_off(value: str) -> bool:
    """Whether the kernel reads this value of a switch as off."""
    return _SWITCH.get(value.lower()) == "N"


def changed(values: Mapping[str, str], file: ModuleFile) -> dict[str, str]:
    """The values in effect that differ from the defaults."""
    parameters = known(file)
    return {
        name: value
        for name, value in values.items()
        if name in parameters and value != parameters[name].default
    }


def _parameter(line: str) -> Parameter:
    match = _LINE.fullmatch(line)
    name, text = (match["name"], match["text"]) if match else (line, "")
    default = _DEFAULT.match(text)
    text = default["text"] if default else text
    bounds = _BOUNDS.match(text)
    return Parameter(
        name=name,
        text=bounds["text"] if bounds else text,
        default=default["default"] if default else "",
        low=int(bounds["low"]) if bounds else None,
        high=int(bounds["high"]) if bounds else None,
        kind=(match["kind"] or "") if match else "",
    )
