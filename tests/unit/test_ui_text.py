"""How pages show user text, times and numbers; sealed sessions and CSRF tokens."""

import pytest

from mainspring.core.model.base.instant import SECOND
from mainspring.web.formatting import count, duration, instant, relative, short_time
from mainspring.web.session import MAX_SESSION_TIME, CookieCipher, build_session, is_masked, mask
from mainspring.web.text import ansi, moments, pretty, visible

NOW = instant("2026-11-15T12:00:00Z")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        ("bell\x07 nul\x00 del\x7f", "bell␇ nul␀ del␡"),
        ("a\u202eb", "a‹U+202E›b"),
    ],
)
def test_control_characters_are_made_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_colors_of_a_terminal_become_classes() -> None:
    assert ansi("a\x1b[31mb\x1b[1mc\x1b[0md") == (
        'a<span class="ansi-fg-red">b</span><span class="ansi-bold ansi-fg-red">c</span>d'
    )
    assert ansi("\x1b[38;5;196mx\x1b[2Jy\x1b]0;title\x07z") == "xyz"
    assert ansi("\x1b[31m<b>&") == '<span class="ansi-fg-red">&lt;b&gt;&amp;</span>'
    assert ansi("\x1b") == "␛"


def test_json_is_indented_and_truncated() -> None:
    assert pretty({"a": [1]}) == '{\n  "a": [\n    1\n  ]\n}'
    assert "bytes in all" in pretty("x" * 100_000)


def test_times_and_numbers_are_short() -> None:
    assert [relative(f"2026-11-15T{clock}Z", NOW) for clock in ("12:00:00", "11:59:48", "12:03:10", "13:59:59")] == [
        "now",
        "12s ago",
        "in 3m 10s",
        "in 1h 59m",
    ]
    assert relative("2026-11-12T08:00:00Z", NOW) == "3d 04h ago"
    assert [short_time(f"{day}T23:04:05Z", NOW) for day in ("2026-11-15", "2026-03-01", "2025-11-15")] == [
        "23:04:05",
        "Mar 1 23:04",
        "2025-11-15",
    ]
    assert [duration(value) for value in (None, 0.0, 0.00084, 0.012, 3.2, 42, 250, 7_500, 100_000)] == [
        "–",
        "0s",
        "840µs",
        "12ms",
        "3.2s",
        "42s",
        "4m 10s",
        "2h 05m",
        "1d 03h",
    ]
    assert [count(value) for value in (0, 1_234, 123_456, 2_500_000, 6.25)] == ["0", "1,234", "123k", "2.5M", "6.2"]


def test_a_session_opens_only_with_the_secret_and_before_it_expires() -> None:
    session = build_session("ms_key", NOW)
    sealed = CookieCipher("secret").encrypt(session)
    assert "ms_key" not in sealed
    assert CookieCipher("secret").open(sealed, NOW) == session
    assert CookieCipher("secret").open(sealed, NOW + MAX_SESSION_TIME) is None
    assert CookieCipher("other").open(sealed, NOW + SECOND) is None
    assert CookieCipher("").open(sealed, NOW) is None
    for wrong in ("", "x", sealed[:-4], "a.b.c.d.e"):
        assert CookieCipher("secret").open(wrong, NOW) is None


def test_a_csrf_token_is_masked_differently_each_time() -> None:
    token = build_session("k", NOW).csrf
    assert mask(token) != mask(token)
    assert is_masked(token, mask(token))
    assert not is_masked(token, mask(build_session("k", NOW).csrf))
    assert not is_masked(token, "")


def test_times_in_a_sentence_are_elements() -> None:
    shown = moments("it is not due: 2026-11-17T00:17:06.431442Z, in 59m")
    assert shown.startswith('it is not due: <time datetime="2026-11-17T00:17:06.431442Z"')
    assert ">2026-11-17 00:17:06 UTC</time>, in 59m" in shown


def test_an_invalid_time_in_a_sentence_is_not_changed() -> None:
    assert moments("<b>2026-99-17T00:17:06Z\u202e</b>") == "&lt;b&gt;2026-99-17T00:17:06Z‹U+202E›&lt;/b&gt;"
