"""Who is told of what, when, and how often: the rules by themselves, and by random histories."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.domain.channels import Channel, QuietHours
from mainspring.domain.errors import Invalid
from mainspring.domain.instant import HOUR, MINUTE, SECOND, Instant, parse_instant
from mainspring.domain.notices import MOST_TOLD, Entry, Notice, On
from mainspring.domain.notification_rules import NotificationRules, Trouble, read_notifications
from mainspring.domain.notifications import FORGOTTEN_AFTER, SLO, Situation, open_problems, waiting_of
from mainspring.settings import load

NOON = parse_instant("2026-11-16T12:00:00Z")
SLACK = ("slack", "secret=SLACK_URL")
PAGER = ("pagerduty", "secret=PAGER_KEY")


def rules_of(
    channels: Mapping[str, tuple[str, ...]], *rules: str, owners: Mapping[str, tuple[str, ...]] | None = None
) -> NotificationRules:
    table = {f"r{number}": tuple(words.split()) for number, words in enumerate(rules)}
    return read_notifications(channels, table, owners or {})


def trouble(stage: On = On.FAILED, at: Instant = NOON, **fields: Any) -> Trouble:
    known = {"tenant": "default", "subject": "task:charge", "fingerprint": "f", "name": "charge", "task": "charge"}
    return Trouble(stage=stage, at=at, **(known | fields))


class Told:
    """A situation whose messages are taken as they come."""

    def __init__(self, rules: NotificationRules) -> None:
        self.situation = Situation(rules, "store")
        self.rows: dict[str, bytes] = {}
        self.messages: list[tuple[str, Instant, Notice]] = []

    def at(self, now: Instant) -> list[tuple[str, Notice]]:
        """What is said then."""
        self.situation.advance(now)
        found = [(target, each.notice) for target, all_of in self.situation.outgoing().items() for each in all_of]
        for target in self.situation.outgoing():
            self.situation.delivered(target)
        self.messages += [(target, now, notice) for target, notice in found]
        self.keep()
        return found

    def keep(self) -> None:
        for name, body in self.situation.changes().items():
            if body is None:
                self.rows.pop(name, None)
            else:
                self.rows[name] = body

    def restart(self) -> None:
        self.keep()
        self.situation = Situation(self.situation.rules, "store", self.rows)

    def stages(self, now: Instant) -> list[tuple[str, list[str]]]:
        return [(target, [entry.stage.value for entry in notice.entries]) for target, notice in self.at(now)]


def test_failures_of_one_kind_are_told_once_together() -> None:
    told = Told(rules_of({"ops": SLACK}, "on=failed to=ops"))
    for second in range(10):
        told.situation.trouble(trouble(at=NOON + second * SECOND))
    told.situation.trouble(trouble(at=NOON + SECOND, fingerprint="other"))
    assert told.at(NOON + 29 * SECOND) == []
    [(target, notice)] = told.at(NOON + 30 * SECOND)
    assert target == "ops"
    assert [(entry.count, entry.stage) for entry in notice.entries] == [(10, On.FAILED), (1, On.FAILED)]
    for hour in range(1, 9):
        told.situation.trouble(trouble(at=NOON + hour * HOUR))
        assert told.at(NOON + hour * HOUR + MINUTE) == []


def test_a_problem_that_gets_worse_is_told_once_more_and_its_end_once() -> None:
    told = Told(rules_of({"ops": SLACK, "pager": PAGER}, "on=failed on=dead on=recovered to=ops", "on=dead to=pager"))
    told.situation.trouble(trouble())
    assert told.stages(NOON + MINUTE) == [("ops", ["failed"])]
    told.situation.trouble(trouble(On.DEAD, NOON + 2 * MINUTE))
    assert told.stages(NOON + 2 * MINUTE) == [("pager", ["dead"])]
    assert told.stages(NOON + 3 * MINUTE) == [("ops", ["dead"])]
    told.situation.trouble(trouble(On.DEAD, NOON + 4 * MINUTE))
    told.situation.succeeded("default", "task:other", NOON + 5 * MINUTE)
    assert told.stages(NOON + 5 * MINUTE) == []
    told.situation.succeeded("default", "task:charge", NOON + 6 * MINUTE)
    assert told.stages(NOON + 6 * MINUTE) == [("pager", ["recovered"])]
    assert told.stages(NOON + 7 * MINUTE) == [("ops", ["recovered"])]
    assert told.situation.problems == {}
    assert told.situation.rests


def test_who_was_not_told_of_a_problem_does_not_hear_of_its_end() -> None:
    told = Told(rules_of({"ops": SLACK}, "on=dead on=recovered to=ops"))
    told.situation.trouble(trouble(On.FAILED))
    told.situation.succeeded("default", "task:charge", NOON + SECOND)
    assert told.stages(NOON + MINUTE) == told.stages(NOON + HOUR) == []
    assert told.situation.rests


def test_who_was_told_hears_of_the_end_also_when_it_has_only_failed_since() -> None:
    told = Told(rules_of({"ops": SLACK}, "on=dead on=recovered to=ops"))
    told.situation.trouble(trouble(On.DEAD))
    assert told.stages(NOON + MINUTE) == [("ops", ["dead"])]
    told.situation.trouble(trouble(On.FAILED, NOON + 2 * MINUTE))
    told.situation.succeeded("default", "task:charge", NOON + 3 * MINUTE)
    told.at(NOON + 4 * MINUTE)
    assert told.stages(NOON + 5 * MINUTE) == [("ops", ["recovered"])]


def test_who_asks_for_ends_alone_hears_of_every_one() -> None:
    told = Told(rules_of({"ops": SLACK}, "on=recovered to=ops"))
    told.situation.trouble(trouble(On.FAILED))
    told.situation.succeeded("default", "task:charge", NOON + SECOND)
    told.at(NOON + MINUTE)
    assert told.stages(NOON + 2 * MINUTE) == [("ops", ["recovered"])]


def test_what_fails_again_and_again_is_not_over_at_the_first_success() -> None:
    told = Told(rules_of({"ops": SLACK}, "on=failed on=recovered to=ops"))
    for second in range(0, 600, 10):
        told.situation.trouble(trouble(at=NOON + second * SECOND))
        told.situation.succeeded("default", "task:charge", NOON + second * SECOND + 5 * SECOND)
        told.at(NOON + second * SECOND + 9 * SECOND)
    assert [notice.entries[0].stage for _, _, notice in told.messages] == [On.FAILED]
    assert told.stages(NOON + 590 * SECOND + 30 * SECOND) == []
    assert told.stages(NOON + 590 * SECOND + MINUTE) == [("ops", ["recovered"])]


def test_what_was_over_before_anybody_heard_of_it_is_one_line_and_no_incident() -> None:
    told = Told(rules_of({"ops": (*SLACK, "group=5m"), "pager": (*PAGER, "group=5m")}, *_BOTH))
    told.situation.trouble(trouble(On.DEAD))
    told.situation.succeeded("default", "task:charge", NOON + SECOND)
    told.at(NOON + MINUTE)
    assert told.stages(NOON + 10 * MINUTE) == [("ops", ["recovered"])]


_BOTH = ("on=dead on=recovered to=ops", "on=dead to=pager")


def test_an_incident_that_was_resolved_too_late_is_not_left_open() -> None:
    told = Told(rules_of({"pager": (*PAGER, "rate=1/h")}, "on=failed to=pager"))
    told.situation.trouble(trouble())
    assert told.stages(NOON) == [("pager", ["failed"])]
    told.situation.succeeded("default", "task:charge", NOON + MINUTE)
    assert told.stages(NOON + 2 * MINUTE) == []
    told.situation.trouble(trouble(at=NOON + 3 * MINUTE))
    told.situation.succeeded("default", "task:charge", NOON + 4 * MINUTE)
    told.at(NOON + 5 * MINUTE)
    [(_, notice)] = told.at(NOON + HOUR)
    [entry] = notice.entries
    assert (entry.stage, entry.unheard) == (On.RECOVERED, False)


def test_an_objective_ends_when_it_is_met_and_not_by_a_success() -> None:
    told = Told(rules_of({"ops": (*SLACK, "group=0s")}, "on=slo-missed on=recovered to=ops"))
    told.situation.trouble(trouble(On.SLO_MISSED, subject="j1", fingerprint=SLO))
    assert told.stages(NOON) == [("ops", ["slo-missed"])]
    told.situation.succeeded("default", "j1", NOON + MINUTE)
    assert told.stages(NOON + HOUR) == []
    told.situation.met_again("default", "j1", NOON + HOUR)
    assert told.stages(NOON + HOUR) == [("ops", ["recovered"])]


def test_in_quiet_hours_only_what_is_urgent_is_told_and_the_rest_at_their_end_as_one() -> None:
    quiet = (*SLACK, "quiet=22:00-07:00", "zone=Europe/Paris", "group=0s")
    told = Told(rules_of({"ops": quiet}, "on=failed to=ops", "on=failed to=ops task=pay urgent"))
    night = parse_instant("2026-11-16T23:30:00+01:00")
    for number in range(3):
        told.situation.trouble(trouble(at=night + number * HOUR, subject=f"task:{number}"))
    assert told.at(night + 3 * HOUR) == []
    told.situation.trouble(trouble(at=night + 3 * HOUR, subject="task:pay", task="pay"))
    [(_, urgent)] = told.at(night + 3 * HOUR)
    assert [entry.task for entry in urgent.entries] == ["pay"]
    morning = parse_instant("2026-11-17T07:00:00+01:00")
    assert told.at(morning - SECOND) == []
    [(_, notice)] = told.at(morning)
    assert len(notice.entries) == 3
    assert notice.held_since == night


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [
        (QuietHours(22 * 60, 7 * 60), ["22:00", "00:00", "06:59"], ["07:00", "12:00", "21:59"]),
        (QuietHours(60, 90), ["01:00", "01:29"], ["00:59", "01:30", "13:00"]),
    ],
)
def test_quiet_hours_may_go_over_midnight(hours: QuietHours, inside: list[str], outside: list[str]) -> None:
    assert all(hours.covers(parse_instant(f"2026-11-16T{time}:00Z")) for time in inside)
    assert not any(hours.covers(parse_instant(f"2026-11-16T{time}:00Z")) for time in outside)


def test_quiet_hours_are_by_the_clock_on_the_wall_also_when_it_is_changed() -> None:
    hours = QuietHours(22 * 60, 7 * 60, "Europe/Paris")
    # The night in which it is two o'clock twice has an hour more.
    assert hours.covers(parse_instant("2026-10-25T05:59:00Z"))
    assert not hours.covers(parse_instant("2026-10-25T06:00:00Z"))
    assert not hours.covers(parse_instant("2026-07-25T05:00:00Z"))


def test_a_channel_says_no_more_than_its_limit_and_then_what_was_held_back() -> None:
    told = Told(rules_of({"ops": (*SLACK, "rate=2/h", "group=0s")}, "on=failed to=ops"))
    for minute in range(50):
        told.situation.trouble(trouble(at=NOON + minute * MINUTE, subject=f"task:{minute}"))
        told.at(NOON + minute * MINUTE)
    assert [len(notice.entries) for _, _, notice in told.messages] == [1, 1]
    [(_, notice)] = told.at(NOON + HOUR)
    assert len(notice.entries) == MOST_TOLD
    assert notice.more == 48 - MOST_TOLD
    assert notice.held_since == NOON + 2 * MINUTE


def test_pagerduty_hears_of_every_problem_by_itself() -> None:
    told = Told(rules_of({"pager": (*PAGER, "rate=1000/h")}, "on=failed to=pager"))
    for number in range(50):
        told.situation.trouble(trouble(subject=f"task:{number}"))
    for second in range(5):
        told.at(NOON + second * SECOND)
    heard = [entry.problem for _, _, notice in told.messages for entry in notice.entries]
    assert len(heard) == len(set(heard)) == 50
    assert max(len(notice.entries) for _, _, notice in told.messages) <= MOST_TOLD


def test_more_than_can_be_kept_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.domain.notifications.MOST_PROBLEMS", 3)
    told = Told(rules_of({"ops": (*SLACK, "group=0s")}, "on=failed to=ops"))
    for number in range(5):
        told.situation.trouble(trouble(subject=f"task:{number}"))
    [(_, notice)] = told.at(NOON)
    assert (len(notice.entries), notice.more) == (3, 2)
    told.situation.trouble(trouble(subject="task:5", at=NOON + MINUTE))
    [(_, notice)] = told.at(NOON + MINUTE)
    assert (notice.entries, notice.more) == ((), 1)
    assert told.situation.rests


def test_one_task_with_errors_of_every_wording_takes_no_room_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.domain.notifications.MOST_KINDS", 3)
    told = Told(rules_of({"ops": (*SLACK, "group=0s")}, "on=failed on=slo-missed on=recovered to=ops"))
    for number in range(10):
        told.situation.trouble(trouble(fingerprint=f"f{number}", error=f"no {number}"))
    told.restart()
    told.situation.trouble(trouble(fingerprint="f1", error="no 1"))
    told.situation.trouble(trouble(On.SLO_MISSED, fingerprint=SLO))
    [(_, notice)] = told.at(NOON)
    others = [(entry.count, entry.error) for entry in notice.entries if entry.count > 2]
    assert others == [(7, "one of many kinds of errors: no 9")]
    assert len(notice.entries) == 5
    told.situation.succeeded("default", "task:charge", NOON + SECOND)
    told.situation.met_again("default", "task:charge", NOON + SECOND)
    told.at(NOON + MINUTE)
    assert told.situation.problems == {}
    assert not told.situation.has_open_of("default")


def test_one_tenant_takes_no_room_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.domain.notifications.MOST_OF_A_TENANT", 3)
    told = Told(rules_of({"ops": (*SLACK, "group=0s")}, "on=failed to=ops tenant=*"))
    for number in range(5):
        told.situation.trouble(trouble(tenant="loud", subject=f"task:{number}"))
    told.situation.trouble(trouble(tenant="calm"))
    [(_, notice)] = told.at(NOON)
    assert [entry.tenant for entry in notice.entries] == ["loud", "loud", "loud", "calm"]
    assert notice.more == 2


def test_an_incident_about_too_many_ends_when_there_were_none_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.domain.notifications.MOST_PROBLEMS", 1)
    told = Told(rules_of({"pager": PAGER, "ops": (*SLACK, "group=0s")}, "on=failed to=pager", "on=failed to=ops"))
    for number in range(3):
        told.situation.trouble(trouble(subject=f"task:{number}"))
    opened = dict(told.at(NOON))
    assert (opened["pager"].more, opened["ops"].more) == (2, 2)
    assert not told.situation.rests
    told.restart()
    told.situation.trouble(trouble(subject="task:1", at=NOON + 50 * MINUTE))
    again = dict(told.at(NOON + 50 * MINUTE))
    assert again["pager"].more_key == opened["pager"].more_key
    assert told.at(NOON + 100 * MINUTE) == []
    [(target, ended)] = told.at(NOON + 110 * MINUTE)
    assert (target, ended.more_over, ended.more_key) == ("pager", True, opened["pager"].more_key)
    assert told.situation.rests


def test_two_installations_have_incidents_of_their_own() -> None:
    rules = rules_of({"pager": PAGER}, "on=failed to=pager")
    assert Situation(rules, "one")._digest("pager") != Situation(rules, "other")._digest("pager")


def test_a_problem_that_nobody_hears_of_any_more_is_forgotten() -> None:
    told = Told(rules_of({"ops": (*SLACK, "group=0s")}, "on=failed on=recovered to=ops"))
    told.situation.trouble(trouble())
    told.at(NOON)
    assert told.at(NOON + FORGOTTEN_AFTER) == []
    assert told.situation.problems == {}
    assert not any(name.startswith("problem:") for name in told.rows)


def test_a_lane_that_has_nothing_to_say_is_forgotten_and_its_numbers_go_on() -> None:
    told = Told(rules_of({"ops": (*SLACK, "group=0s")}, "on=failed to=ops"))
    numbers = []
    for hour in range(0, 6, 2):
        told.situation.trouble(trouble(at=NOON + hour * HOUR, subject=f"task:{hour}"))
        told.situation.advance(NOON + hour * HOUR)
        numbers += [each.number for each in told.situation.outgoing()["ops"]]
        told.at(NOON + hour * HOUR)
        assert "lane:ops" in told.rows
        told.at(NOON + (hour + 1) * HOUR)
        assert "lane:ops" not in told.rows
        told.restart()
    assert len(set(numbers)) == 3


def test_rules_choose_by_task_queue_job_tag_and_tenant() -> None:
    rules = rules_of({"ops": SLACK}, "on=dead to=ops task=pay* queue=money job=night* tag=vital tenant=acme")
    right: dict[str, Any] = {
        "tenant": "acme",
        "task": "payout",
        "queue": "money",
        "name": "nightly",
        "tags": ("vital", "x"),
    }
    assert rules.wishes(trouble(On.DEAD, **right)).keys() == {"ops"}
    for field, wrong in (
        ("tenant", "default"),
        ("task", "mail"),
        ("queue", "default"),
        ("name", "daily"),
        ("tags", ("x",)),
        ("tags", ()),
    ):
        assert rules.wishes(trouble(On.DEAD, **(right | {field: wrong}))) == {}
    assert rules.wishes(trouble(On.FAILED, **right)) == {}


def test_a_run_that_is_dead_has_also_failed() -> None:
    rules = rules_of({"ops": SLACK}, "on=failed to=ops")
    assert rules.wishes(trouble(On.DEAD))["ops"].stage is On.FAILED


def test_owners_are_told_by_their_channel_or_by_mail_in_the_domains_that_are_named() -> None:
    channels = {
        "billing": SLACK,
        "mail": ("email", "server=localhost:25", "tls=none", "from=m@x.example", "to=owner", "domain=x.example"),
    }
    rules = rules_of(channels, "on=dead to=owner", owners={"team-billing": ("billing",), "*": ("mail",)})
    told = {
        owner: list(rules.wishes(trouble(On.DEAD, owner=owner)))
        for owner in (
            "team-billing",
            "ann@x.example",
            "ann@X.example",
            "ann@evil.example",
            "ann",
            "",
            "a b@x.example",
            "a@x.example\n",
        )
    }
    assert told == {
        "team-billing": ["billing"],
        "ann@x.example": ["mail ann@x.example"],
        "ann@X.example": ["mail ann@X.example"],
        "ann@evil.example": [],
        "ann": [],
        "": [],
        "a b@x.example": [],
        "a@x.example\n": [],
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "is no kind"),
        ("telegram secret=KEY_ONE", "'telegram' is no kind .*slack, pagerduty, email, webhook"),
        ("slack", "names no secret"),
        ("slack secret=lower", "cannot be the name of a secret"),
        ("slack secret=KEY_ONE secret=KEY_TWO", "secret is there twice"),
        ("slack https://hooks.slack.com/T/B/x", "is no word of slack"),
        ("slack secret=KEY_ONE rate=0/h", "rate=0/h is none"),
        ("slack secret=KEY_ONE rate=5/d", "rate=5/d is none"),
        ("slack secret=KEY_ONE group=2h", "group is out of range"),
        ("slack secret=KEY_ONE group=soon", "is not a duration"),
        ("slack secret=KEY_ONE quiet=22-7", "quiet=22-7 are no hours"),
        ("slack secret=KEY_ONE quiet=22:00-22:00", "quiet hours end where they begin"),
        ("slack secret=KEY_ONE quiet=22:00-07:00 zone=Mars", "'Mars' is not a known time zone"),
        ("slack secret=KEY_ONE zone=UTC", "there are none"),
        ("webhook secret=KEY_ONE", "names no url"),
        ("webhook secret=KEY_ONE url=ftp://x", "is not HTTP"),
        ("email from=a@x.example to=b@x.example", "names no server"),
        ("email server=x:0 from=a@x.example to=b@x.example", "server=x:0 is none"),
        ("email server=x from=a@x.example to=b", "'b' is not an address"),
        ("email server=x from=a@x.example to=b@x.example tls=maybe", "tls=maybe is none"),
        ("email server=x from=a@x.example to=b@x.example user=me", "go together"),
        ("email server=x from=a@x.example to=b@x.example user=me secret=KEY_ONE tls=none", "not sent in the clear"),
        ("email server=x from=a@x.example to=owner", "needs the domains"),
        ("email server=x from=a@x.example to=owner to=b@x.example domain=x.example", "goes alone"),
    ],
)
def test_a_channel_that_could_not_work_is_refused_by_its_name(words: str, message: str) -> None:
    with pytest.raises(Invalid, match=rf"notifications\.channels\.ops: .*{message}"):
        rules_of({"ops": tuple(words.split())})


def test_what_was_meant_to_be_a_secret_is_not_repeated() -> None:
    with pytest.raises(Invalid) as refused:
        rules_of({"ops": ("slack", "secrt=xoxb-12345", "secret=KEY_ONE")})
    assert "xoxb" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("on=dead", "needs one to="),
        ("to=ops", "says on= nothing"),
        ("on=sometimes to=ops", "on=sometimes is nothing that happens"),
        ("on=dead to=nobody", "there is no channel 'nobody'"),
        ("on=dead to=ops colour=red", "has 'colour=red'"),
        ("on=dead to=ops tenant=a tenant=b", "has two tenants"),
    ],
)
def test_a_rule_that_could_not_work_is_refused_by_its_name(words: str, message: str) -> None:
    with pytest.raises(Invalid, match=rf"notifications\.rules\.r0: .*{message}"):
        rules_of({"ops": SLACK}, words)


def test_owners_need_channels_that_are_there() -> None:
    with pytest.raises(Invalid, match=r"notifications\.owners\.ann: names no channel"):
        rules_of({"ops": SLACK}, "on=dead to=owner", owners={"ann": ("nobody",)})
    with pytest.raises(Invalid, match=r"notifications\.owners: is empty"):
        rules_of({"ops": SLACK}, "on=dead to=owner")


def test_what_was_written_down_can_be_looked_at() -> None:
    told = Told(rules_of({"ops": SLACK}, "on=failed to=ops"))
    told.situation.trouble(trouble(subject="task:a"))
    told.situation.trouble(trouble(subject="task:b", at=NOON + SECOND))
    told.keep()
    assert [problem.subject for problem in open_problems(told.rows)] == ["task:b", "task:a"]
    assert waiting_of(told.rows) == {"ops": 2}


def test_a_channel_that_is_gone_from_the_settings_is_forgotten() -> None:
    told = Told(rules_of({"ops": SLACK}, "on=failed on=recovered to=ops"))
    told.situation.trouble(trouble())
    told.keep()
    told.situation = Situation(rules_of({"other": SLACK}, "on=failed on=recovered to=other"), "store", told.rows)
    told.situation.succeeded("default", "task:charge", NOON + SECOND)
    assert told.at(NOON + HOUR) == []


def test_the_page_shows_settings_that_can_be_used(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs/how-to/notifications.md"
    [block] = re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "mainspring.toml").write_text(block)
    rules = load(environment={}, file=tmp_path / "mainspring.toml").notifications.read()
    assert [channel.kind for channel in rules.channels.values()] == ["slack", "pagerduty", "email", "webhook"]
    told = rules.wishes(trouble(On.DEAD, task="payout_drivers", owner="ann@example.org", tags=("money",)))
    assert told.keys() == {"ops", "pager", "mail ann@example.org", "billing"}


def test_rules_can_be_written_in_the_environment() -> None:
    settings = load(
        environment={
            "MAINSPRING_NOTIFICATIONS_CHANNELS": "ops=slack secret=SLACK_URL,pager=pagerduty secret=PAGER_KEY",
            "MAINSPRING_NOTIFICATIONS_RULES": "bad=on=failed on=recovered to=ops,worst=on=dead to=pager",
        }
    )
    rules = settings.notifications.read()
    assert rules.wishes(trouble(On.DEAD)).keys() == {"ops", "pager"}
    assert "PAGER_KEY" not in repr(settings)


# By random histories.

_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["failed", "dead", "success", "restart", "nothing"]),
        st.integers(0, 5),
        st.sampled_from(["f", "g"]),
        st.integers(0, 20 * 60),
    ),
    max_size=80,
)
_CHANNELS = st.fixed_dictionaries(
    {
        "group": st.sampled_from(["0s", "30s", "10m"]),
        "rate": st.sampled_from(["1/h", "3/h", "1000/h"]),
        "quiet": st.sampled_from(["", "22:00-07:00", "11:00-13:30"]),
    }
)


def _history(channel: dict[str, str], kind: tuple[str, ...], steps: list[tuple[str, int, str, int]]) -> Told:
    words = tuple(f"{key}={value}" for key, value in channel.items() if value)
    told = Told(rules_of({"ops": (*kind, *words)}, "on=failed on=dead on=recovered to=ops"))
    now = NOON
    for what, number, fingerprint, seconds in steps:
        now += seconds * SECOND
        subject = f"task:{number}"
        if what in ("failed", "dead"):
            told.situation.trouble(trouble(On(what), now, subject=subject, fingerprint=fingerprint))
        elif what == "success":
            told.situation.succeeded("default", subject, now)
        elif what == "restart":
            told.restart()
        told.at(now)
    for number in range(6):
        told.situation.succeeded("default", f"task:{number}", now)
    for hour in range(60):
        told.at(now + hour * HOUR + MINUTE)
    return told


@settings(max_examples=150)
@given(_CHANNELS, _STEPS)
def test_no_more_is_said_than_the_limit_and_nothing_in_quiet_hours(
    channel: dict[str, str], steps: list[tuple[str, int, str, int]]
) -> None:
    told = _history(channel, SLACK, steps)
    made: Channel = told.situation.rules.channels["ops"]
    times = [now for _, now, _ in told.messages]
    for now in times:
        assert sum(now - HOUR < other <= now for other in times) <= made.rate
        assert made.quiet is None or not made.quiet.covers(now)


@settings(max_examples=150)
@given(_CHANNELS, _STEPS, st.sampled_from([SLACK, PAGER]))
def test_every_problem_is_told_and_so_is_its_end_whoever_is_restarted(
    channel: dict[str, str], steps: list[tuple[str, int, str, int]], kind: tuple[str, ...]
) -> None:
    told = _history(channel, kind, steps)
    assert told.situation.problems == {}
    assert told.situation.rests
    assert all(not name.startswith("problem:") for name in told.rows)
    entries: dict[str, list[Entry]] = {}
    for _, _, notice in told.messages:
        assert len({entry.problem for entry in notice.entries}) == len(notice.entries)
        for entry in notice.entries:
            entries.setdefault(entry.problem, []).append(entry)
    failing = {(number, fingerprint) for what, number, fingerprint, _ in steps if what in ("failed", "dead")}
    assert kind == PAGER or len(entries) == len(failing)
    for heard in entries.values():
        assert heard[-1].stage is On.RECOVERED
        # Between two ends it gets worse at most: nothing is told twice.
        stages = [entry.stage for entry in heard]
        while stages:
            end = stages.index(On.RECOVERED)
            assert len(set(stages[:end])) == end
            stages = stages[end + 1 :]
        if kind == PAGER:
            assert not any(entry.unheard for entry in heard)


@given(_CHANNELS, _STEPS)
def test_what_is_written_down_is_all_that_counts(
    channel: dict[str, str], steps: list[tuple[str, int, str, int]]
) -> None:
    restarted = [each for step in steps for each in (step, ("restart", 0, "f", 0))]
    one, other = _history(channel, SLACK, steps), _history(channel, SLACK, restarted)
    assert msgspec.to_builtins(one.messages) == msgspec.to_builtins(other.messages)
