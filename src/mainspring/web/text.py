"""Makes text of others safe to display. Templates escape markup; this module does the rest."""

import re
from typing import Any

import msgspec
from markupsafe import Markup, escape

from mainspring.web.formatting import absolute

#: Displayed as symbols instead of taking effect: control characters except tab and line feed, and characters that
#: change the text direction.
_HIDDEN = {
    **{code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)},
    0x7F: "\u2421",
    **{code: f"‹U+{code:04X}›" for code in (*range(0x80, 0xA0), 0xFEFF, 0x200B, 0x200E, 0x200F, 0x2028, 0x2029)},
    **{code: f"‹U+{code:04X}›" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))},
}
#: Escapes of the same characters in JSON, where they only occur within strings.
_ESCAPED = {code: f"\\u{code:04x}" for code in _HIDDEN}
_MAX_SHOWN = 64 * 1024
_MOMENT = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?Z\b", re.ASCII)
_TIME = Markup('<time datetime="{}" title="{}" data-style="absolute">{}</time>')
_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_OTHER_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-ln-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def visible(value: Any) -> Any:
    """Replace invisible characters. Applied to every value that a template prints."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return value if value.isprintable() else value.translate(_HIDDEN)
    return value


def moments(text: str) -> Markup:
    """Render a sentence of the API with its times in the zone of the viewer."""
    parts: list[Markup] = []
    at = 0
    for found in _MOMENT.finditer(text):
        try:
            shown = absolute(found.group())
        except ValueError:
            # Looks like a time, but is not one.
            continue
        parts.append(escape(visible(text[at : found.start()])))
        parts.append(_TIME.format(found.group(), shown, shown))
        at = found.end()
    return Markup("").join([*parts, escape(visible(text[at:]))])


def pretty(raw: Any) -> str:
    """Format JSON with indents. Text that is too large is cut and ends with its size."""
    if isinstance(raw, msgspec.UnsetType) or raw is None:
        return ""
    text = _encode(raw)
    if len(text) > _MAX_SHOWN:
        return text[:_MAX_SHOWN].decode(errors="replace") + f"\n… {len(text):,} bytes in all"
    return msgspec.json.format(text, indent=2).decode(errors="replace")


def typed(raw: Any) -> str:
    """Format JSON for an input field. Invisible characters are escaped, so that the same value comes back."""
    return pretty(raw).translate(_ESCAPED)


def is_cut(raw: Any) -> bool:
    """Return whether ``pretty`` shows only a part of the value."""
    return not isinstance(raw, msgspec.UnsetType) and len(_encode(raw)) > _MAX_SHOWN


def _encode(raw: Any) -> bytes:
    return bytes(raw) if isinstance(raw, msgspec.Raw) else msgspec.json.encode(raw)


def ansi(text: str) -> Markup:
    """Convert terminal colors to classes and remove every other escape sequence."""
    text = _OTHER_ESCAPES.sub("", text.replace("\r\n", "\n"))
    parts: list[Markup] = []
    classes: set[str] = set()
    at = 0
    for found in _SGR.finditer(text):
        parts.append(_span(text[at : found.start()], classes))
        classes = _apply_codes(classes, found.group(1))
        at = found.end()
    parts.append(_span(text[at:], classes))
    return Markup("").join(parts)


def _span(text: str, classes: set[str]) -> Markup:
    shown = escape(visible(text))
    if not classes or not text:
        return shown
    return Markup('<span class="{}">{}</span>').format(" ".join(sorted(classes)), shown)


def _apply_codes(classes: set[str], codes: str) -> set[str]:
    numbers = [int(code) if code else 0 for code in codes.split(";")][:16]
    found = set(classes)
    while numbers:
        number = numbers.pop(0)
        match number:
            case 0:
                found = set()
            case 1:
                found.add("ansi-bold")
            case 2:
                found.add("ansi-dim")
            case 3:
                found.add("ansi-italic")
            case 4:
                found.add("ansi-underline")
            case 22:
                found -= {"ansi-bold", "ansi-dim"}
            case 38 | 48:
                # Skip palettes of 256 and more colors: the text is kept without its color.
                del numbers[: 2 if numbers[:1] == [5] else 4]
            case 39:
                found = {name for name in found if not name.startswith("ansi-fg-")}
            case _ if 30 <= number <= 37 or 90 <= number <= 97:
                found = {name for name in found if not name.startswith("ansi-fg-")}
                found.add(f"ansi-fg-{_COLOURS[number % 10]}")
            case _:
                pass
    return found
