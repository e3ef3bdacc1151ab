"""A page of sections, each of text, tables and pictures, as one HTML file."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement

__all__ = ["Picture", "Section", "Table", "write_page"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto;
       padding: 0 1em; color: #222; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.2em; border-top: 1px solid #ddd;
         padding-top: .8em; }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px; }
caption { text-align: left; font-weight: 600; padding: .3em 0; }
th, td { padding: .25em .7em; border-bottom: 1px solid #e4e4e4; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; } code { background: #f4f4f4; padding: 0 .25em; }
.note { color: #666; font-size: 13px; } .missing { color: #a33; }
"""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are shown as they are."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Picture:
    """A file beside the page."""

    name: str
    about: str


@dataclass(slots=True)
class Section:
    """One figure, or one claim."""

    title: str
    text: list[str] = field(default_factory=list)
    """Paragraphs."""
    commands: list[str] = field(default_factory=list)
    """What made its numbers."""
    parts: list[Table | Picture] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Runs that it would show and that nobody has kept."""


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section]) -> None:
    """Write the page; pictures are looked for beside it."""
    root = Element("html", lang="en")
    head = SubElement(root, "head")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "title").text = title
    SubElement(head, "style").text = _STYLE
    body = SubElement(root, "body")
    SubElement(body, "h1").text = title
    SubElement(body, "p").text = lead
    contents = SubElement(body, "ul")
    for number, section in enumerate(sections):
        entry = SubElement(contents, "li")
        SubElement(entry, "a", href=f"#s{number}").text = section.title
        _section(body, f"s{number}", section)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode", method="html")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"<!doctype html>\n{text}\n", encoding="utf-8")


def _section(body: Element, anchor: str, section: Section) -> None:
    SubElement(body, "h2", id=anchor).text = section.title
    for paragraph in section.text:
        SubElement(body, "p").text = paragraph
    for part in section.parts:
        if isinstance(part, Picture):
            SubElement(body, "img", src=part.name, alt=part.about)
        else:
            _table(body, part)
    for name in section.missing:
        SubElement(
            body, "p", {"class": "missing"}
        ).text = f"Not in this report: {name} has not been kept."
    for command in section.commands:
        line = SubElement(body, "p", {"class": "note"})
        line.text = "Made by "
        SubElement(line, "code").text = command


def _table(body: Element, table: Table) -> None:
    made = SubElement(body, "table")
    SubElement(made, "caption").text = table.caption
    row = SubElement(SubElement(made, "thead"), "tr")
    for title in table.head:
        SubElement(row, "th").text = title
    rows = SubElement(made, "tbody")
    for cells in table.rows:
        row = SubElement(rows, "tr")
        for cell in cells:
            SubElement(row, "td").text = cell
