"""A plugin of mypy: functions of dataclasses fail for a `msgspec.Struct`, which mypy alone lets pass."""

from __future__ import annotations

from collections.abc import Callable

from mypy.plugin import FunctionContext, Plugin
from mypy.types import Instance, Type, TypeVarType, UnionType, get_proper_type

OF_DATACLASSES = frozenset(
    f"dataclasses.{name}" for name in ("asdict", "astuple", "fields", "is_dataclass", "replace")
)


class StructReplace(Plugin):
    """Reports each call of these functions with a Struct."""

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        return _checked if fullname in OF_DATACLASSES else None


def _checked(call: FunctionContext) -> Type:
    if any(_is_struct(argument) for argument in call.arg_types[0]):
        call.api.fail("A Struct is no dataclass: use the functions of msgspec.structs", call.context)
    return call.default_return_type


def _is_struct(any_type: Type) -> bool:
    proper = get_proper_type(any_type)
    if isinstance(proper, TypeVarType):
        return _is_struct(proper.upper_bound)
    if isinstance(proper, UnionType):
        return any(map(_is_struct, proper.items))
    return isinstance(proper, Instance) and proper.type.has_base("msgspec.Struct")


def plugin(version: str) -> type[Plugin]:
    """The entry point that mypy calls."""
    return StructReplace
