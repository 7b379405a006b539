"""JSON bodies from outside, read as leniently as RocketMQ's serializer reads them: the one place that says how.

Other clients write other JSON than Java's: the C++ one sends enums as ordinals and numbers as texts. What fastjson
takes is taken, with the value it gives:

    number     from a number (fractions are cut off), true and false (1 and 0), and a text of digits ("1,000" too)
    boolean    from a number (1 is true), and "true", "1", "Y", "T", "false", "0", "F", "N"
    text       from a number as it is written, true and false, and from an object or array as its compact JSON
    enum       by name in any case, by ordinal; an unknown name is as none
    object     [] and "" are as none
    list       an object alone is a list of one where objects are listed; what is none in it is left out
    table      its keys may be objects; such a table comes sorted, since Java's has no order
    unknown members are skipped; null, for numbers and booleans also "" and "null", is as if not sent

Everything else is refused, also what fastjson takes by accident: dates as numbers, numbers that overflow, missing
commas, members by another spelling of their name, references forward or to nothing. Source: fastjson 1.2.83, by what
it answers (tests/compat/test_java_bodies.py).
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import inspect

from tandemmq.storage import fastjson

Kind = TypeVar("Kind")

#: values that one body may stand for, "$ref" resolved: some per byte, so that no small body makes much work
NODES_MIN: Final = 10_000
NODES_PER_BYTE: Final = 2
#: what a Struct sets to true whose members need not be sent, though they have no default: see _zero
UNSENT_IS_ZERO: Final = "__unsent_is_zero__"
_ENUM: Final = "names of the enum"

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_ZERO_FRACTION: Final = re.compile(r"\.0*$")
_INT32_MAX: Final = (1 << 31) - 1
_INT64_DIGITS: Final = 19
_TRUE: Final = frozenset({"1", "Y", "y", "T"})
_FALSE: Final = frozenset({"0", "F", "f", "N"})
_SAID_NOTHING: Final = frozenset({"", "null", "NULL"})

_encode_text: Final = msgspec.json.Encoder(decimal_format="number").encode


class BodyUnreadable(ValueError):
    """A body is no JSON, too large, or not of the shape that its request asks for."""


class _Misfit(Exception):
    """A value that cannot be what is wanted, and the way to it."""

    def __init__(self, what: str, path: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.path = path

    def below(self, step: str) -> _Misfit:
        return _Misfit(self.what, step + self.path)


_Shape = Callable[[Any], Any]
_NONE: Final = object()  # what stands for "not sent"


def enum_of(*names: str) -> msgspec.Meta:
    """What makes a text an enum, for Annotated: its names, in the order of their ordinals in Java."""
    return msgspec.Meta(pattern=f"^({'|'.join(names)})$", extra={_ENUM: names})


def read(
    kind: type[Kind], body: bytes | memoryview, *, bytes_max: int = fastjson.BYTES_MAX
) -> Kind:
    """The body as `kind`, a Struct or what else msgspec decodes; enums are texts that say so (enum_of).

    Exact JSON of the right shape, which is nearly all, is decoded in one step.
    Raises BodyUnreadable, and nothing else.
    """
    if len(body) > bytes_max:
        raise BodyUnreadable(f"it has {len(body)} bytes, more than {bytes_max}")
    data = bytes(body)
    if not fastjson.refers(data):
        try:
            return cast(Kind, _decoder(cast(Any, kind))(data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # not standard JSON, or not quite of this shape
    try:
        tree = fastjson.loads(
            data,
            bytes_max=bytes_max,
            nodes_max=NODES_MIN + NODES_PER_BYTE * len(data),
            exact_numbers=True,
        )
    except ValueError as problem:
        raise BodyUnreadable(str(problem)) from None
    return _leniently(kind, tree)


def shaped(kind: type[Kind], tree: Any) -> Kind:
    """The same, of a document or a part of one that is parsed already. Raises BodyUnreadable."""
    try:
        return msgspec.convert(tree, kind)
    except (msgspec.ValidationError, RecursionError):
        return _leniently(kind, tree)


def _leniently(kind: type[Kind], tree: Any) -> Kind:
    try:
        value = _shape(cast(Any, kind))(tree)
        if value is _NONE:
            raise BodyUnreadable("it holds nothing")
        return msgspec.convert(value, kind)
    except _Misfit as misfit:
        raise BodyUnreadable(f"{misfit.what} - at `${misfit.path}`"[:256]) from None
    except (msgspec.ValidationError, RecursionError) as problem:
        raise BodyUnreadable(str(problem)[:256]) from None


@functools.cache
def _decoder(kind: Any) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(kind).decode


@functools.cache
def _shape(kind: Any) -> _Shape:
    return _shape_of(inspect.type_info(kind))


def _shape_of(info: inspect.Type) -> _Shape:
    match info:
        case inspect.Metadata():
            names = (info.extra or {}).get(_ENUM)
            return functools.partial(_enum, names) if names else _shape_of(info.type)
        case inspect.UnionType():
            (inner,) = (each for each in info.types if not isinstance(each, inspect.NoneType))
            return _optional(_shape_of(inner))
        case inspect.StructType():
            return _struct(info)
        case (
            inspect.ListType()
            | inspect.SetType()
            | inspect.FrozenSetType()
            | inspect.VarTupleType()
        ):
            return _list(info.item_type)
        case inspect.DictType():
            return _table(info)
        case inspect.BoolType():
            return _boolean
        case inspect.IntType():
            narrow = info.le is not None and info.le <= _INT32_MAX
            return functools.partial(_integer, narrow)
        case inspect.FloatType():
            return _fraction
        case inspect.StrType():
            return _text
        case inspect.AnyType() | inspect.CustomType(cls=builtins.object):
            return _anything
    raise TypeError(f"bodies hold no {info}")


def _optional(inner: _Shape) -> _Shape:
    def shape(value: Any) -> Any:
        found = None if value is None else inner(value)
        return None if found is _NONE else found

    return shape


def _struct(info: inspect.StructType) -> _Shape:
    members = [(field.encode_name, _shape_of(field.type)) for field in info.fields]
    zeros = getattr(info.cls, UNSENT_IS_ZERO, False)
    unsent = {each.encode_name: _zero(each.type) for each in info.fields if zeros and each.required}

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            found = dict(unsent)
            for name, member in members:
                if (sent := value.get(name)) is None:
                    continue  # null is as if it were not sent: the default stays
                try:
                    if (read := member(sent)) is not _NONE:
                        found[name] = read
                except _Misfit as misfit:
                    raise misfit.below(f".{name}") from None
            return found
        if value is None or value in ("", []):
            return _NONE
        raise _misfit("an object", value)

    return shape


def _zero(info: inspect.Type) -> Any:
    """What Java leaves in a member that nothing was sent for; a text, which it leaves null, is empty."""
    match info:
        case inspect.StructType():
            return _struct(info)({})
        case inspect.DictType():
            return {}
        case inspect.StrType():
            return ""
        case inspect.BoolType():
            return False
        case inspect.IntType() | inspect.FloatType():
            return 0
    return ()


def _list(item: inspect.Type) -> _Shape:
    inner = _shape_of(item)
    alone = isinstance(item, inspect.StructType)

    def shape(value: Any) -> Any:
        if alone and isinstance(value, dict):
            value = [value]
        if not isinstance(value, list):
            raise _misfit("an array", value)
        found = []
        for at, each in enumerate(value):
            if each is None:
                continue
            try:
                if (read := inner(each)) is not _NONE:
                    found.append(read)
            except _Misfit as misfit:
                raise misfit.below(f"[{at}]") from None
        return found

    return shape


def _table(info: inspect.DictType) -> _Shape:
    inner = _shape_of(info.value_type)
    key_shape = _key(info.key_type)
    ordered = isinstance(info.key_type, inspect.StructType)
    objects = isinstance(info.value_type, inspect.StructType)

    def shape(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _misfit("an object", value)
        found = {}
        for key, each in value.items():
            try:
                read = _NONE if each is None else inner(each)
                if read is not _NONE:
                    found[key_shape(key)] = read
                elif objects:
                    raise _misfit("an object", each)
            except _Misfit as misfit:
                raise misfit.below(f"[{key[:64]!r}]") from None
        return dict(sorted(found.items(), key=_first)) if ordered else found

    return shape


def _key(info: inspect.Type) -> _Shape:
    match info:
        case inspect.IntType():
            return functools.partial(_integer, False)
        case inspect.StructType():
            return functools.partial(_object_key, info.cls)
    return _text


def _object_key(kind: type[Any], text: str) -> Any:
    """fastjson writes an object that is a key as JSON within the text, or as it is."""
    try:
        return read(kind, text.encode("utf-8", "surrogatepass"))
    except BodyUnreadable as problem:
        raise _Misfit(f"the key is none: {problem}") from None


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _integer(narrow: bool, value: Any) -> Any:
    match value:
        case bool() | int():
            return int(value)
        case float():
            return _integer(narrow, Decimal(repr(value)))
        case Decimal():
            if not value.is_finite() or value.adjusted() >= _INT64_DIGITS:
                raise _Misfit("a number does not fit 64 bits")
            return int(value)
        case str():
            if value in _SAID_NOTHING:
                return _NONE
            digits = value.replace(",", "")
            if narrow:
                digits = _ZERO_FRACTION.sub("", digits)
            if _INTEGER.fullmatch(digits):
                return int(digits)
    raise _misfit("a number", value)


def _fraction(value: Any) -> Any:
    match value:
        case int() | float() | Decimal():
            return float(value)
        case str():
            if value in _SAID_NOTHING:
                return _NONE
            with contextlib.suppress(ValueError):
                return float(value)
    raise _misfit("a number", value)


def _boolean(value: Any) -> Any:
    match value:
        case bool():
            return value
        case int() | float() | Decimal():
            number = _integer(True, value)
            if -_INT32_MAX <= number <= _INT32_MAX:
                return number == 1
        case str():
            if value in _SAID_NOTHING:
                return _NONE
            if value in _TRUE or value.lower() == "true":
                return True
            if value in _FALSE or value.lower() == "false":
                return False
    raise _misfit("a boolean", value)


def _text(value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float() | Decimal():
            return str(value)
    return _encode_text(_without_nulls(value)).decode()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return list(map(_without_nulls, value)) if isinstance(value, list) else value


def _enum(names: tuple[str, ...], value: Any) -> Any:
    match value:
        case str():
            wanted = value.lower()
            return next((name for name in names if name.lower() == wanted), _NONE)
        case int() if not isinstance(value, bool) and 0 <= value < len(names):
            return names[value]
    raise _misfit(f"one of {', '.join(names)}", value)


def _anything(value: Any) -> Any:
    match value:
        case dict():
            return {key: _anything(each) for key, each in value.items()}
        case list():
            return list(map(_anything, value))
        case Decimal():
            return float(value)
    return value


def _misfit(wanted: str, value: Any) -> _Misfit:
    found = {dict: "an object", list: "an array", type(None): "null"}.get(type(value))
    return _Misfit(f"Expected {wanted}, got {found or repr(value)[:40]}")
