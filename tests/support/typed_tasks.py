"""Types of arguments, an example of each, and tasks of a child process that take them."""

import enum
import os
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
from hypothesis import strategies as st

from mainspring import Mainspring


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Line:
    article: UUID
    price: Decimal
    tags: frozenset[str] = frozenset()


@dataclass
class Order:
    number: int
    placed: datetime
    lines: list[Line] = field(default_factory=list)
    color: Color | None = None


class Address(TypedDict):
    city: str
    since: NotRequired[date]


class Point(NamedTuple):
    x: int
    on: date


class Money(msgspec.Struct, frozen=True):
    amount: Decimal
    currency: Literal["EUR", "USD"] = "EUR"


class Card(pydantic.BaseModel):
    kind: Literal["card"] = "card"
    number: str = pydantic.Field(alias="cardNumber")
    until: date
    limits: dict[str, Decimal] = {}


class Transfer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, ser_json_bytes="base64", val_json_bytes="base64")

    kind: Literal["transfer"] = "transfer"
    sent: datetime
    proof: bytes
    colors: set[Color] = set()


class Kind(NamedTuple):
    """A type as an annotation, a value of it, and a strategy for many."""

    annotation: Any
    example: Any
    values: st.SearchStrategy[Any]


_OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_aware = st.datetimes(*map(datetime.fromisoformat, ("0002-01-01", "9998-12-31")), timezones=_OFFSETS)
_decimals = st.decimals(allow_nan=False, allow_infinity=False)
_texts = st.text(st.characters(codec="utf-8"), max_size=9)
_colors = st.sampled_from(Color)
_lines = st.builds(Line, st.uuids(), _decimals, st.frozensets(_texts, max_size=3))
_cards = st.builds(Card, cardNumber=_texts, until=st.dates(), limits=st.dictionaries(_texts, _decimals, max_size=2))
_transfers = st.builds(Transfer, sent=_aware, proof=st.binary(), colors=st.sets(_colors))
_id = UUID("7d444840-9dc0-11d1-b245-5ffdce74fad2")
_noon = datetime(2027, 3, 1, 12, tzinfo=timezone(timedelta(hours=2)))
_naive = datetime.fromisoformat("2027-03-01T12:00:00.000007")
_card = Card(cardNumber="4242", until=date(2030, 1, 31), limits={"day": Decimal("100.00")})
_transfer = Transfer(sent=_noon, proof=b"\x00\xff", colors={Color.RED})

KINDS = {
    "datetime aware": Kind(datetime, _noon, _aware),
    "datetime naive": Kind(datetime, _naive, st.datetimes()),
    "date": Kind(date, date(2027, 3, 1), st.dates()),
    "time": Kind(time, time(9, 30, 0, 5), st.times()),
    "timedelta": Kind(timedelta, timedelta(days=-1, microseconds=3), st.timedeltas()),
    "uuid": Kind(UUID, _id, st.uuids()),
    "decimal": Kind(Decimal, Decimal("1.10"), _decimals),
    "enum": Kind(Color, Color.BLUE, _colors),
    "int enum": Kind(Level, Level.HIGH, st.sampled_from(Level)),
    "flag": Kind(Rights, Rights.READ | Rights.WRITE, st.sampled_from([*Rights, Rights.READ | Rights.WRITE])),
    "literal": Kind(Literal["a", "b"], "b", st.sampled_from("ab")),
    "int": Kind(int, 1 << 70, st.integers()),
    "float": Kind(float, 0.1, st.floats(allow_nan=False, allow_infinity=False)),
    "bytes": Kind(bytes, b"\x00\xff", st.binary()),
    "short bytes": Kind(
        Annotated[bytes, pydantic.Field(max_length=3)], b"\xfb\xff", st.binary(max_size=3)
    ),
    "bytearray": Kind(bytearray, bytearray(b"\xff"), st.binary().map(bytearray)),
    "set": Kind(set[UUID], {_id}, st.sets(st.uuids(), max_size=3)),
    "frozenset": Kind(frozenset[date], frozenset({date(2027, 3, 1)}), st.frozensets(st.dates(), max_size=3)),
    "tuple": Kind(tuple[int, Decimal], (1, Decimal("2.50")), st.tuples(st.integers(), _decimals)),
    "tuple of any length": Kind(tuple[date, ...], (date.min, date.max), st.lists(st.dates()).map(tuple)),
    "dict": Kind(dict[date, set[int]], {date.min: {1}}, st.dictionaries(st.dates(), st.sets(st.integers()))),
    "union": Kind(UUID | int | None, _id, st.none() | st.integers() | st.uuids()),
    "dataclass": Kind(
        Order,
        Order(7, _noon, [Line(_id, Decimal("9.90"), frozenset({"new"}))], Color.RED),
        st.builds(Order, st.integers(), _aware, st.lists(_lines, max_size=2), st.none() | _colors),
    ),
    "typed dict": Kind(
        Address,
        {"city": "Lyon", "since": date(2020, 1, 1)},
        st.fixed_dictionaries({"city": _texts}, optional={"since": st.dates()}),
    ),
    "named tuple": Kind(Point, Point(1, date.min), st.builds(Point, st.integers(), st.dates())),
    "struct": Kind(Money, Money(Decimal("1.10")), st.builds(Money, _decimals, st.sampled_from(["EUR", "USD"]))),
    "model": Kind(Card, _card, _cards),
    "strict model": Kind(Transfer, _transfer, _transfers),
    "union of models": Kind(Card | Transfer, _transfer, _cards | _transfers),
    "union of a model": Kind(Card | int | None, _card, st.none() | st.integers() | _cards),
    "discriminated": Kind(
        Annotated[Card | Transfer, pydantic.Field(discriminator="kind")], _card, _cards | _transfers
    ),
}  # fmt: skip

app = Mainspring()


class Everything(msgspec.Struct):
    """Every type at once, as a child process has seen it."""

    placed: datetime
    naive: datetime
    day: date
    at: time
    took: timedelta
    key: UUID
    price: Decimal
    color: Color
    level: Level
    rights: Rights
    raw: bytes
    ids: set[UUID]
    days: frozenset[date]
    pair: tuple[int, Decimal]
    order: Order
    address: Address
    point: Point
    money: Money | None
    card: Card
    transfers: list[Transfer]


@app.task(retries=0)
def echo(
    everything: Everything, payment: Card | Transfer, money: dict[str, Money] | None = None
) -> tuple[int, Everything, Card | None, Transfer | None, dict[str, Money] | None]:
    """Return the process and what it was given, if that has the types which it should have."""
    assert everything.placed.utcoffset() == timedelta(hours=2)
    assert everything.naive.tzinfo is None
    assert isinstance(everything.order.lines[0], Line)
    card, transfer = (payment, None) if isinstance(payment, Card) else (None, payment)
    return os.getpid(), everything, card, transfer, money


@app.task(retries=0)
def price_of(order: Order, rate: Decimal = Decimal(1)) -> Money:
    return Money(sum((line.price for line in order.lines), Decimal(0)) * rate)


EVERYTHING = Everything(
    placed=_noon,
    naive=_naive,
    day=date(2027, 3, 1),
    at=time(9, 30),
    took=timedelta(hours=1),
    key=_id,
    price=Decimal("1.10"),
    color=Color.RED,
    level=Level.LOW,
    rights=Rights.WRITE,
    raw=b"\x00\xff",
    ids={_id},
    days=frozenset({date.min}),
    pair=(1, Decimal("2.50")),
    order=Order(7, _noon.astimezone(UTC), [Line(_id, Decimal("9.90"))]),
    address={"city": "Nice"},
    point=Point(1, date.max),
    money=None,
    card=_card,
    transfers=[_transfer],
)
CARD, TRANSFER = _card, _transfer
