"""The sequence diagrams of the documentation can be drawn, and name existing methods of the ports."""

import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

import mainspring.core.ports
from tools.site.sequence import Unreadable, draw, in_words, parse, with_pictures

PAGE = (Path(__file__).parents[2] / "docs" / "design" / "sequence-diagrams.md").read_text()
DIAGRAMS = re.findall(r"^```mermaid\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SMALL = """sequenceDiagram
participant A as Ann
participant B
A->>B: one <two>
B-->>A: three
A-xB: four
Note over A,B: five
"""


def list_port_methods() -> set[str]:
    ports = pkgutil.walk_packages(mainspring.core.ports.__path__, "mainspring.core.ports.")
    return {
        name
        for module in ("mainspring.core.store", *(found.name for found in ports))
        for _, protocol in inspect.getmembers(import_module(module), inspect.isclass)
        for name, _ in inspect.getmembers(protocol, inspect.isfunction)
    }


def test_every_section_of_the_page_has_a_diagram() -> None:
    assert len(DIAGRAMS) == 5
    assert len(re.findall("^## ", PAGE, re.MULTILINE)) == 5


@pytest.mark.parametrize("text", DIAGRAMS)
def test_a_diagram_calls_only_methods_of_the_ports(text: str) -> None:
    named = set(re.findall(r"\b(\w+)\(\)", text))
    assert named
    assert named <= list_port_methods()


@pytest.mark.parametrize("text", DIAGRAMS)
def test_a_diagram_is_drawn_with_every_text_inside_the_picture(text: str) -> None:
    diagram = parse(text)
    picture = ElementTree.fromstring(draw(diagram, "a title"))  # noqa: S314 - it is our own
    width, height = (float(number) for number in picture.attrib["viewBox"].split()[2:])
    spans = [span for span in picture.iter() if span.tag.endswith("tspan")]
    words = " ".join("".join(span.itertext()) for span in spans)
    for step in diagram.steps:
        assert step.text in words or all(word in words for word in step.text.split())
    for span in spans:
        assert 0 < float(span.attrib["x"]) < width
        assert 0 < float(span.attrib["y"]) < height


def test_a_diagram_has_a_text_alternative() -> None:
    assert in_words(parse(SMALL)) == ("Ann to B: one <two>. B to Ann: three. Ann to B (does not arrive): four. five.")


def test_a_drawing_is_escaped_and_replaces_its_source() -> None:
    page = with_pictures(f"before\n\n```mermaid\n{SMALL}```\n\nafter\n", "a & b")
    assert "one &lt;two&gt;" in page
    assert "<title>a &amp; b</title>" in page
    assert page.startswith("before\n\n```{raw} html\n<figure><svg")
    assert page.endswith("</figure>\n```\n\nafter\n")


@pytest.mark.parametrize(
    "text",
    [
        "graph TD\nA-->B",
        "sequenceDiagram\nparticipant A\nA->>B: who is B?",
        "sequenceDiagram\nparticipant A\nloop every second",
    ],
)
def test_an_unknown_diagram_syntax_is_rejected(text: str) -> None:
    with pytest.raises(Unreadable):
        parse(text)
