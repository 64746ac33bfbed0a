"""Alert rules: which problems go to which channel, when and how often; by example and by random histories."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.config.loading import load
from mainspring.core.model.alerts.alert_messages import MAX_LISTED, Alert, AlertProblem, AlertStage
from mainspring.core.model.alerts.channels import Channel, QuietHours
from mainspring.core.model.alerts.notification_rules import NotificationRules, ProblemEvent, read_notifications
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import HOUR, MINUTE, SECOND, Instant, parse_instant
from mainspring.features.alerts.alert_state import DROPPED_AFTER, SLO, AlertState
from mainspring.features.alerts.problems import decode_open_problems
from mainspring.features.alerts.target_alerts import count_pending

NOON = parse_instant("2026-11-16T12:00:00Z")
SLACK = ("slack", "secret=SLACK_URL")
PAGER = ("pagerduty", "secret=PAGER_KEY")


def make_rules(
    channels: Mapping[str, tuple[str, ...]], *rules: str, owners: Mapping[str, tuple[str, ...]] | None = None
) -> NotificationRules:
    table = {f"r{number}": tuple(words.split()) for number, words in enumerate(rules)}
    return read_notifications(channels, table, owners or {})


def problem_event(stage: AlertStage = AlertStage.FAILED, at: Instant = NOON, **fields: Any) -> ProblemEvent:
    known = {"tenant": "default", "subject": "task:charge", "fingerprint": "f", "name": "charge", "task": "charge"}
    return ProblemEvent(stage=stage, at=at, **(known | fields))


class Recorder:
    """A situation whose outgoing messages are delivered at once and recorded."""

    def __init__(self, rules: NotificationRules) -> None:
        self.state = AlertState(rules, "store")
        self.rows: dict[str, bytes] = {}
        self.messages: list[tuple[str, Instant, Alert]] = []

    def deliver(self, now: Instant) -> list[tuple[str, Alert]]:
        """Advance to ``now`` and deliver what is due."""
        self.state.advance(now)
        found = [(target, each.alert) for target, all_of in self.state.list_outgoing().items() for each in all_of]
        for target in self.state.list_outgoing():
            self.state.mark_submitted(target)
        self.messages += [(target, now, alert) for target, alert in found]
        self.save()
        return found

    def save(self) -> None:
        for name, body in self.state.take_changes().items():
            if body is None:
                self.rows.pop(name, None)
            else:
                self.rows[name] = body

    def restart(self) -> None:
        self.save()
        self.state = AlertState(self.state.rules, "store", self.rows)

    def deliver_stages(self, now: Instant) -> list[tuple[str, list[str]]]:
        return [(target, [entry.stage.value for entry in alert.entries]) for target, alert in self.deliver(now)]


def test_failures_of_one_kind_are_sent_once_in_one_message() -> None:
    recorder = Recorder(make_rules({"ops": SLACK}, "on=failed to=ops"))
    for second in range(10):
        recorder.state.add_failure(problem_event(at=NOON + second * SECOND))
    recorder.state.add_failure(problem_event(at=NOON + SECOND, fingerprint="other"))
    assert recorder.deliver(NOON + 29 * SECOND) == []
    [(target, alert)] = recorder.deliver(NOON + 30 * SECOND)
    assert target == "ops"
    assert [(entry.count, entry.stage) for entry in alert.entries] == [(10, AlertStage.FAILED), (1, AlertStage.FAILED)]
    for hour in range(1, 9):
        recorder.state.add_failure(problem_event(at=NOON + hour * HOUR))
        assert recorder.deliver(NOON + hour * HOUR + MINUTE) == []


def test_a_problem_is_sent_again_when_it_gets_worse_and_once_when_it_ends() -> None:
    recorder = Recorder(
        make_rules({"ops": SLACK, "pager": PAGER}, "on=failed on=dead on=recovered to=ops", "on=dead to=pager")
    )
    recorder.state.add_failure(problem_event())
    assert recorder.deliver_stages(NOON + MINUTE) == [("ops", ["failed"])]
    recorder.state.add_failure(problem_event(AlertStage.DEAD, NOON + 2 * MINUTE))
    assert recorder.deliver_stages(NOON + 2 * MINUTE) == [("pager", ["dead"])]
    assert recorder.deliver_stages(NOON + 3 * MINUTE) == [("ops", ["dead"])]
    recorder.state.add_failure(problem_event(AlertStage.DEAD, NOON + 4 * MINUTE))
    recorder.state.add_success("default", "task:other", NOON + 5 * MINUTE)
    assert recorder.deliver_stages(NOON + 5 * MINUTE) == []
    recorder.state.add_success("default", "task:charge", NOON + 6 * MINUTE)
    assert recorder.deliver_stages(NOON + 6 * MINUTE) == [("pager", ["recovered"])]
    assert recorder.deliver_stages(NOON + 7 * MINUTE) == [("ops", ["recovered"])]
    assert not recorder.state.problems
    assert recorder.state.is_idle


def test_a_channel_that_did_not_get_a_problem_does_not_get_its_recovery() -> None:
    recorder = Recorder(make_rules({"ops": SLACK}, "on=dead on=recovered to=ops"))
    recorder.state.add_failure(problem_event(AlertStage.FAILED))
    recorder.state.add_success("default", "task:charge", NOON + SECOND)
    assert recorder.deliver_stages(NOON + MINUTE) == recorder.deliver_stages(NOON + HOUR) == []
    assert recorder.state.is_idle


def test_a_channel_that_got_a_problem_gets_its_recovery_after_lesser_failures() -> None:
    recorder = Recorder(make_rules({"ops": SLACK}, "on=dead on=recovered to=ops"))
    recorder.state.add_failure(problem_event(AlertStage.DEAD))
    assert recorder.deliver_stages(NOON + MINUTE) == [("ops", ["dead"])]
    recorder.state.add_failure(problem_event(AlertStage.FAILED, NOON + 2 * MINUTE))
    recorder.state.add_success("default", "task:charge", NOON + 3 * MINUTE)
    recorder.deliver(NOON + 4 * MINUTE)
    assert recorder.deliver_stages(NOON + 5 * MINUTE) == [("ops", ["recovered"])]


def test_a_rule_for_recoveries_only_sends_every_recovery() -> None:
    recorder = Recorder(make_rules({"ops": SLACK}, "on=recovered to=ops"))
    recorder.state.add_failure(problem_event(AlertStage.FAILED))
    recorder.state.add_success("default", "task:charge", NOON + SECOND)
    recorder.deliver(NOON + MINUTE)
    assert recorder.deliver_stages(NOON + 2 * MINUTE) == [("ops", ["recovered"])]


def test_a_flapping_problem_recovers_only_after_a_minute_without_failures() -> None:
    recorder = Recorder(make_rules({"ops": SLACK}, "on=failed on=recovered to=ops"))
    for second in range(0, 600, 10):
        recorder.state.add_failure(problem_event(at=NOON + second * SECOND))
        recorder.state.add_success("default", "task:charge", NOON + second * SECOND + 5 * SECOND)
        recorder.deliver(NOON + second * SECOND + 9 * SECOND)
    assert [alert.entries[0].stage for _, _, alert in recorder.messages] == [AlertStage.FAILED]
    assert recorder.deliver_stages(NOON + 590 * SECOND + 30 * SECOND) == []
    assert recorder.deliver_stages(NOON + 590 * SECOND + MINUTE) == [("ops", ["recovered"])]


def test_a_problem_that_ended_before_it_was_sent_is_one_line_and_no_incident() -> None:
    recorder = Recorder(
        make_rules(
            {"ops": (*SLACK, "group=5m"), "pager": (*PAGER, "group=5m")},
            "on=dead on=recovered to=ops",
            "on=dead to=pager",
        )
    )
    recorder.state.add_failure(problem_event(AlertStage.DEAD))
    recorder.state.add_success("default", "task:charge", NOON + SECOND)
    recorder.deliver(NOON + MINUTE)
    assert recorder.deliver_stages(NOON + 10 * MINUTE) == [("ops", ["recovered"])]


def test_an_incident_that_was_resolved_too_late_is_not_left_open() -> None:
    recorder = Recorder(make_rules({"pager": (*PAGER, "rate=1/h")}, "on=failed to=pager"))
    recorder.state.add_failure(problem_event())
    assert recorder.deliver_stages(NOON) == [("pager", ["failed"])]
    recorder.state.add_success("default", "task:charge", NOON + MINUTE)
    assert recorder.deliver_stages(NOON + 2 * MINUTE) == []
    recorder.state.add_failure(problem_event(at=NOON + 3 * MINUTE))
    recorder.state.add_success("default", "task:charge", NOON + 4 * MINUTE)
    recorder.deliver(NOON + 5 * MINUTE)
    [(_, alert)] = recorder.deliver(NOON + HOUR)
    [entry] = alert.entries
    assert (entry.stage, entry.recovered_unsent) == (AlertStage.RECOVERED, False)


def test_a_missed_objective_recovers_when_it_is_met_and_not_by_a_success() -> None:
    recorder = Recorder(make_rules({"ops": (*SLACK, "group=0s")}, "on=slo-missed on=recovered to=ops"))
    recorder.state.add_failure(problem_event(AlertStage.SLO_MISSED, subject="j1", fingerprint=SLO))
    assert recorder.deliver_stages(NOON) == [("ops", ["slo-missed"])]
    recorder.state.add_success("default", "j1", NOON + MINUTE)
    assert recorder.deliver_stages(NOON + HOUR) == []
    recorder.state.add_slo_recovery("default", "j1", NOON + HOUR)
    assert recorder.deliver_stages(NOON + HOUR) == [("ops", ["recovered"])]


def test_quiet_hours_delay_all_but_urgent_problems_until_their_end() -> None:
    quiet = (*SLACK, "quiet=22:00-07:00", "zone=Europe/Paris", "group=0s")
    recorder = Recorder(make_rules({"ops": quiet}, "on=failed to=ops", "on=failed to=ops task=pay urgent"))
    night = parse_instant("2026-11-16T23:30:00+01:00")
    for number in range(3):
        recorder.state.add_failure(problem_event(at=night + number * HOUR, subject=f"task:{number}"))
    assert recorder.deliver(night + 3 * HOUR) == []
    recorder.state.add_failure(problem_event(at=night + 3 * HOUR, subject="task:pay", task="pay"))
    [(_, urgent)] = recorder.deliver(night + 3 * HOUR)
    assert [entry.task for entry in urgent.entries] == ["pay"]
    morning = parse_instant("2026-11-17T07:00:00+01:00")
    assert recorder.deliver(morning - SECOND) == []
    [(_, alert)] = recorder.deliver(morning)
    assert len(alert.entries) == 3
    assert alert.held_since == night


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [
        (QuietHours(22 * 60, 7 * 60), ["22:00", "00:00", "06:59"], ["07:00", "12:00", "21:59"]),
        (QuietHours(60, 90), ["01:00", "01:29"], ["00:59", "01:30", "13:00"]),
    ],
)
def test_quiet_hours_may_span_midnight(hours: QuietHours, inside: list[str], outside: list[str]) -> None:
    assert all(hours.covers(parse_instant(f"2026-11-16T{time}:00Z")) for time in inside)
    assert not any(hours.covers(parse_instant(f"2026-11-16T{time}:00Z")) for time in outside)


def test_quiet_hours_follow_local_time_across_a_clock_change() -> None:
    hours = QuietHours(22 * 60, 7 * 60, "Europe/Paris")
    # The night in which clocks go back is an hour longer.
    assert hours.covers(parse_instant("2026-10-25T05:59:00Z"))
    assert not hours.covers(parse_instant("2026-10-25T06:00:00Z"))
    assert not hours.covers(parse_instant("2026-07-25T05:00:00Z"))


def test_a_channel_sends_no_more_than_its_rate_and_later_what_was_held_back() -> None:
    recorder = Recorder(make_rules({"ops": (*SLACK, "rate=2/h", "group=0s")}, "on=failed to=ops"))
    for minute in range(50):
        recorder.state.add_failure(problem_event(at=NOON + minute * MINUTE, subject=f"task:{minute}"))
        recorder.deliver(NOON + minute * MINUTE)
    assert [len(alert.entries) for _, _, alert in recorder.messages] == [1, 1]
    [(_, alert)] = recorder.deliver(NOON + HOUR)
    assert len(alert.entries) == MAX_LISTED
    assert alert.more == 48 - MAX_LISTED
    assert alert.held_since == NOON + 2 * MINUTE


def test_pagerduty_gets_an_event_for_every_problem() -> None:
    recorder = Recorder(make_rules({"pager": (*PAGER, "rate=1000/h")}, "on=failed to=pager"))
    for number in range(50):
        recorder.state.add_failure(problem_event(subject=f"task:{number}"))
    for second in range(5):
        recorder.deliver(NOON + second * SECOND)
    sent = [entry.problem for _, _, alert in recorder.messages for entry in alert.entries]
    assert len(sent) == len(set(sent)) == 50
    assert max(len(alert.entries) for _, _, alert in recorder.messages) <= MAX_LISTED


def test_problems_beyond_the_maximum_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.features.alerts.problems.MAX_PROBLEMS", 3)
    recorder = Recorder(make_rules({"ops": (*SLACK, "group=0s")}, "on=failed to=ops"))
    for number in range(5):
        recorder.state.add_failure(problem_event(subject=f"task:{number}"))
    [(_, alert)] = recorder.deliver(NOON)
    assert (len(alert.entries), alert.more) == (3, 2)
    recorder.state.add_failure(problem_event(subject="task:5", at=NOON + MINUTE))
    [(_, alert)] = recorder.deliver(NOON + MINUTE)
    assert (alert.entries, alert.more) == ((), 1)
    assert recorder.state.is_idle


def test_errors_of_a_task_beyond_the_maximum_of_kinds_share_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.features.alerts.alert_state.MAX_KINDS", 3)
    recorder = Recorder(make_rules({"ops": (*SLACK, "group=0s")}, "on=failed on=slo-missed on=recovered to=ops"))
    for number in range(10):
        recorder.state.add_failure(problem_event(fingerprint=f"f{number}", error=f"no {number}"))
    recorder.restart()
    recorder.state.add_failure(problem_event(fingerprint="f1", error="no 1"))
    recorder.state.add_failure(problem_event(AlertStage.SLO_MISSED, fingerprint=SLO))
    [(_, alert)] = recorder.deliver(NOON)
    others = [(entry.count, entry.error) for entry in alert.entries if entry.count > 2]
    assert others == [(7, "one of many kinds of errors: no 9")]
    assert len(alert.entries) == 5
    recorder.state.add_success("default", "task:charge", NOON + SECOND)
    recorder.state.add_slo_recovery("default", "task:charge", NOON + SECOND)
    recorder.deliver(NOON + MINUTE)
    assert not recorder.state.problems
    assert not recorder.state.problems.has_tenant("default")


def test_a_tenant_with_many_problems_does_not_crowd_out_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.features.alerts.problems.MAX_PROBLEMS_OF_TENANT", 3)
    recorder = Recorder(make_rules({"ops": (*SLACK, "group=0s")}, "on=failed to=ops tenant=*"))
    for number in range(5):
        recorder.state.add_failure(problem_event(tenant="loud", subject=f"task:{number}"))
    recorder.state.add_failure(problem_event(tenant="calm"))
    [(_, alert)] = recorder.deliver(NOON)
    assert [entry.tenant for entry in alert.entries] == ["loud", "loud", "loud", "calm"]
    assert alert.more == 2


def test_the_incident_for_too_many_problems_ends_after_an_hour_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.features.alerts.problems.MAX_PROBLEMS", 1)
    recorder = Recorder(
        make_rules({"pager": PAGER, "ops": (*SLACK, "group=0s")}, "on=failed to=pager", "on=failed to=ops")
    )
    for number in range(3):
        recorder.state.add_failure(problem_event(subject=f"task:{number}"))
    opened = dict(recorder.deliver(NOON))
    assert (opened["pager"].more, opened["ops"].more) == (2, 2)
    assert not recorder.state.is_idle
    recorder.restart()
    recorder.state.add_failure(problem_event(subject="task:1", at=NOON + 50 * MINUTE))
    again = dict(recorder.deliver(NOON + 50 * MINUTE))
    assert again["pager"].more_key == opened["pager"].more_key
    assert recorder.deliver(NOON + 100 * MINUTE) == []
    [(target, ended)] = recorder.deliver(NOON + 110 * MINUTE)
    assert (target, ended.more_over, ended.more_key) == ("pager", True, opened["pager"].more_key)
    assert recorder.state.is_idle


def test_two_installations_use_different_incident_keys() -> None:
    rules = make_rules({"pager": PAGER}, "on=failed to=pager")
    assert AlertState(rules, "one")._hash("pager") != AlertState(rules, "other")._hash("pager")


def test_a_problem_without_news_is_eventually_forgotten() -> None:
    recorder = Recorder(make_rules({"ops": (*SLACK, "group=0s")}, "on=failed on=recovered to=ops"))
    recorder.state.add_failure(problem_event())
    recorder.deliver(NOON)
    assert recorder.deliver(NOON + DROPPED_AFTER) == []
    assert not recorder.state.problems
    assert not any(name.startswith("problem:") for name in recorder.rows)


def test_an_idle_channel_is_forgotten_and_its_message_numbers_stay_unique() -> None:
    recorder = Recorder(make_rules({"ops": (*SLACK, "group=0s")}, "on=failed to=ops"))
    numbers = []
    for hour in range(0, 6, 2):
        recorder.state.add_failure(problem_event(at=NOON + hour * HOUR, subject=f"task:{hour}"))
        recorder.state.advance(NOON + hour * HOUR)
        numbers += [each.number for each in recorder.state.list_outgoing()["ops"]]
        recorder.deliver(NOON + hour * HOUR)
        assert "target:ops" in recorder.rows
        recorder.deliver(NOON + (hour + 1) * HOUR)
        assert "target:ops" not in recorder.rows
        recorder.restart()
    assert len(set(numbers)) == 3


def test_rules_select_by_task_queue_job_tag_and_tenant() -> None:
    rules = make_rules({"ops": SLACK}, "on=dead to=ops task=pay* queue=money job=night* tag=vital tenant=acme")
    right: dict[str, Any] = {
        "tenant": "acme",
        "task": "payout",
        "queue": "money",
        "name": "nightly",
        "tags": ("vital", "x"),
    }
    assert rules.find_subscriptions(problem_event(AlertStage.DEAD, **right)).keys() == {"ops"}
    for field, wrong in (
        ("tenant", "default"),
        ("task", "mail"),
        ("queue", "default"),
        ("name", "daily"),
        ("tags", ("x",)),
        ("tags", ()),
    ):
        assert rules.find_subscriptions(problem_event(AlertStage.DEAD, **(right | {field: wrong}))) == {}
    assert rules.find_subscriptions(problem_event(AlertStage.FAILED, **right)) == {}


def test_a_rule_for_failures_also_matches_dead_runs() -> None:
    rules = make_rules({"ops": SLACK}, "on=failed to=ops")
    assert rules.find_subscriptions(problem_event(AlertStage.DEAD))["ops"].stage is AlertStage.FAILED


def test_owners_are_notified_on_their_channel_or_by_mail_to_allowed_domains() -> None:
    channels = {
        "billing": SLACK,
        "mail": ("email", "server=localhost:25", "tls=none", "from=m@x.example", "to=owner", "domain=x.example"),
    }
    rules = make_rules(channels, "on=dead to=owner", owners={"team-billing": ("billing",), "*": ("mail",)})
    notified = {
        owner: list(rules.find_subscriptions(problem_event(AlertStage.DEAD, owner=owner)))
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
    assert notified == {
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
def test_an_invalid_channel_is_rejected_by_name(words: str, message: str) -> None:
    with pytest.raises(Invalid, match=rf"notifications\.channels\.ops: .*{message}"):
        make_rules({"ops": tuple(words.split())})


def test_a_misspelled_secret_option_is_not_shown() -> None:
    with pytest.raises(Invalid) as refused:
        make_rules({"ops": ("slack", "secrt=xoxb-12345", "secret=KEY_ONE")})
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
def test_an_invalid_rule_is_rejected_by_name(words: str, message: str) -> None:
    with pytest.raises(Invalid, match=rf"notifications\.rules\.r0: .*{message}"):
        make_rules({"ops": SLACK}, words)


def test_owners_need_existing_channels() -> None:
    with pytest.raises(Invalid, match=r"notifications\.owners\.ann: names no channel"):
        make_rules({"ops": SLACK}, "on=dead to=owner", owners={"ann": ("nobody",)})
    with pytest.raises(Invalid, match=r"notifications\.owners: is empty"):
        make_rules({"ops": SLACK}, "on=dead to=owner")


def test_open_problems_and_waiting_messages_are_read_from_saved_rows() -> None:
    recorder = Recorder(make_rules({"ops": SLACK}, "on=failed to=ops"))
    recorder.state.add_failure(problem_event(subject="task:a"))
    recorder.state.add_failure(problem_event(subject="task:b", at=NOON + SECOND))
    recorder.save()
    assert [problem.subject for problem in decode_open_problems(recorder.rows)] == ["task:b", "task:a"]
    assert count_pending(recorder.rows) == {"ops": 2}


def test_a_channel_that_was_removed_from_the_settings_is_forgotten() -> None:
    recorder = Recorder(make_rules({"ops": SLACK}, "on=failed on=recovered to=ops"))
    recorder.state.add_failure(problem_event())
    recorder.save()
    recorder.state = AlertState(make_rules({"other": SLACK}, "on=failed on=recovered to=other"), "store", recorder.rows)
    recorder.state.add_success("default", "task:charge", NOON + SECOND)
    assert recorder.deliver(NOON + HOUR) == []


def test_the_settings_on_the_page_are_valid(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs/guides/alerts.md"
    [block] = re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "mainspring.toml").write_text(block)
    rules = load(environment={}, file=tmp_path / "mainspring.toml").notifications.read()
    assert [channel.kind for channel in rules.channels.values()] == ["slack", "pagerduty", "email", "webhook"]
    subscriptions = rules.find_subscriptions(
        problem_event(AlertStage.DEAD, task="payout_drivers", owner="ann@example.org", tags=("money",))
    )
    assert subscriptions.keys() == {"ops", "pager", "mail ann@example.org", "billing"}


def test_rules_are_read_from_the_environment() -> None:
    settings = load(
        environment={
            "MAINSPRING_NOTIFICATIONS_CHANNELS": "ops=slack secret=SLACK_URL,pager=pagerduty secret=PAGER_KEY",
            "MAINSPRING_NOTIFICATIONS_RULES": "bad=on=failed on=recovered to=ops,worst=on=dead to=pager",
        }
    )
    rules = settings.notifications.read()
    assert rules.find_subscriptions(problem_event(AlertStage.DEAD)).keys() == {"ops", "pager"}
    assert "PAGER_KEY" not in repr(settings)


# --- Random histories ---

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


def run_history(channel: dict[str, str], kind: tuple[str, ...], steps: list[tuple[str, int, str, int]]) -> Recorder:
    words = tuple(f"{key}={value}" for key, value in channel.items() if value)
    recorder = Recorder(make_rules({"ops": (*kind, *words)}, "on=failed on=dead on=recovered to=ops"))
    now = NOON
    for what, number, fingerprint, seconds in steps:
        now += seconds * SECOND
        subject = f"task:{number}"
        if what in ("failed", "dead"):
            recorder.state.add_failure(problem_event(AlertStage(what), now, subject=subject, fingerprint=fingerprint))
        elif what == "success":
            recorder.state.add_success("default", subject, now)
        elif what == "restart":
            recorder.restart()
        recorder.deliver(now)
    for number in range(6):
        recorder.state.add_success("default", f"task:{number}", now)
    for hour in range(60):
        recorder.deliver(now + hour * HOUR + MINUTE)
    return recorder


@given(_CHANNELS, _STEPS)
def test_no_channel_exceeds_its_rate_or_sends_in_quiet_hours(
    channel: dict[str, str], steps: list[tuple[str, int, str, int]]
) -> None:
    recorder = run_history(channel, SLACK, steps)
    made: Channel = recorder.state.rules.channels["ops"]
    times = [now for _, now, _ in recorder.messages]
    for now in times:
        assert sum(now - HOUR < other <= now for other in times) <= made.rate
        assert made.quiet is None or not made.quiet.covers(now)


@given(_CHANNELS, _STEPS, st.sampled_from([SLACK, PAGER]))
def test_every_problem_and_its_end_are_sent_across_restarts(
    channel: dict[str, str], steps: list[tuple[str, int, str, int]], kind: tuple[str, ...]
) -> None:
    recorder = run_history(channel, kind, steps)
    assert not recorder.state.problems
    assert recorder.state.is_idle
    assert all(not name.startswith("problem:") for name in recorder.rows)
    entries: dict[str, list[AlertProblem]] = {}
    for _, _, alert in recorder.messages:
        assert len({entry.problem for entry in alert.entries}) == len(alert.entries)
        for entry in alert.entries:
            entries.setdefault(entry.problem, []).append(entry)
    failing = {(number, fingerprint) for what, number, fingerprint, _ in steps if what in ("failed", "dead")}
    assert kind == PAGER or len(entries) == len(failing)
    for sent in entries.values():
        assert sent[-1].stage is AlertStage.RECOVERED
        # Between two recoveries a problem only gets worse: no stage is sent twice.
        stages = [entry.stage for entry in sent]
        while stages:
            end = stages.index(AlertStage.RECOVERED)
            assert len(set(stages[:end])) == end
            stages = stages[end + 1 :]
        if kind == PAGER:
            assert not any(entry.recovered_unsent for entry in sent)


@given(_CHANNELS, _STEPS)
def test_restarts_between_steps_do_not_change_the_messages(
    channel: dict[str, str], steps: list[tuple[str, int, str, int]]
) -> None:
    restarted = [each for step in steps for each in (step, ("restart", 0, "f", 0))]
    one, other = run_history(channel, SLACK, steps), run_history(channel, SLACK, restarted)
    assert msgspec.to_builtins(one.messages) == msgspec.to_builtins(other.messages)
