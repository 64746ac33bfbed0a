"""YAML without surprises: the core schema of version 1.2.

``on`` and ``no`` are words, ``010`` is ten, ``12:30`` and dates are texts. Duplicate keys, which PyYAML ignores, are
rejected. So are anchors, because a few lines of them can expand to gigabytes.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from mainspring.core.model.base.errors import Invalid

_RESOLVERS: tuple[tuple[str, str, str], ...] = (
    ("null", r"^(?:~|null|Null|NULL|)$", "~nN"),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", "-+0123456789"),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+0123456789.",
    ),
)


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(None, None, "anchors and aliases are not read", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(None, None, "a key is no plain word", key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(None, None, f"{key.value!r:.80} is there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_number(self, node: yaml.ScalarNode) -> int:
        text = str(self.construct_scalar(node))
        return int(text, 0) if text.startswith(("0o", "0x")) else int(text)


class _Dumper(yaml.SafeDumper):
    """Quotes texts that a reader of either YAML version would take for another type."""


# The base class has those of version 1.1.
_Loader.yaml_implicit_resolvers = {}
for _name, _pattern, _first in _RESOLVERS:
    for _kind in (_Loader, _Dumper):
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(_pattern), [*_first, ""])
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    if not text.replace("\n", "").isprintable():
        # Other line breaks, which single quotes would fold into a space.
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def read_yaml(text: str, where: str) -> list[Any]:
    """Return the documents of a text; errors name the line."""
    return list(_documents(text, where))


def _documents(text: str, where: str) -> Iterator[Any]:
    try:
        yield from yaml.load_all(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise Invalid(f"{where}{line}", error.problem or "is not YAML") from None
    except yaml.YAMLError as error:
        raise Invalid(where, f"is not YAML: {str(error).splitlines()[0]}") from None
    except ValueError as error:
        raise Invalid(where, f"holds what cannot be: {error}") from None
    except RecursionError:
        raise Invalid(where, "is nested too deeply") from None


def write_yaml(value: object) -> str:
    dumped: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110
    )
    return dumped
