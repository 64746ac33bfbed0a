"""``mainspring keys``: on a memory store in this process, and at the end on real stores."""

from pathlib import Path

import pytest

from mainspring.cli.client import target
from mainspring.core.model.access.access import Role, read_key
from mainspring.core.model.base.errors import Invalid, NotFound
from mainspring.core.model.base.instant import DAY
from tests.support.clock import START
from tests.support.command_line import run_command
from tests.support.key_shell import Shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    made = Shell()
    monkeypatch.setattr(target, "open_runtime", made.open)
    return made


def test_only_the_key_is_printed_and_it_is_valid(shell: Shell) -> None:
    identifier, secret = shell.create("--role", "admin", "--all-tenants")
    [key] = shell.kept()
    assert (key.id, key.role, key.tenant, key.name, key.made_by) == (identifier, Role.ADMIN, None, "admin", "cli:ada")
    assert key.is_valid(secret, START)
    assert secret not in shell.stderr
    assert f"key {identifier}: admin of all tenants, without expiry" in shell.stderr


def test_a_key_has_the_tenant_queues_and_expiry_of_its_options(shell: Shell) -> None:
    words = ["--name", "ci", "--role", "submitter", "--tenant", "acme", "--queue", "mail", "--queue", "images"]
    _, secret = shell.create(*words, "--expires", "90d")
    [key] = shell.kept()
    assert (key.name, key.role, key.tenant, key.queues) == ("ci", Role.SUBMITTER, "acme", ("mail", "images"))
    assert key.expires_at == START + 90 * DAY
    assert key.is_valid(secret, START + 90 * DAY - 1)
    assert not key.is_valid(secret, START + 90 * DAY)
    assert "until 2026-05-30T00:00:00Z" in shell.stderr


def test_a_key_without_a_tenant_is_for_the_default_tenant(shell: Shell) -> None:
    shell.create("--role", "admin")
    assert [key.tenant for key in shell.kept()] == ["default"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--role", "root"], "--role: 'root' is not a role"),
        (["--role", "admin", "--tenant", "acme", "--all-tenants"], "--tenant: contradicts --all-tenants"),
        (["--role", "admin", "--expires", "soon"], "--expires: 'soon' is not a duration"),
        (["--role", "admin", "--expires", "0s"], "--expires: must be longer than zero"),
        (["--role", "admin", "--expires", "999999w"], "--expires: is out of range"),
        (["--role", "admin", "--name", "a\nb"], "name: 'a\\\\nb' is not a name"),
        (["--role", "admin", "--tenant", " x"], "tenant: ' x' is not a name"),
        (["--role", "admin", "--queue", ""], "queues: '' is not a name"),
    ],
)
def test_invalid_options_are_refused_and_no_key_is_made(shell: Shell, words: list[str], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        shell.run("create", *words)
    assert shell.kept() == []


def test_an_empty_tenant_is_refused(shell: Shell) -> None:
    """A script passes one when its variable is not set."""
    with pytest.raises(Invalid, match="tenant: '' is not a name"):
        shell.run("create", "--role", "admin", "--tenant", "")


def test_the_list_of_keys_shows_their_state_and_no_secrets(shell: Shell) -> None:
    secrets = [shell.create("--role", "viewer", "--name", "short", "--expires", "1d")[1]]
    gone, secret = shell.create("--role", "worker", "--name", "gone", "--tenant", "acme", "--queue", "mail")
    secrets.append(secret)
    secrets.append(shell.create("--role", "admin", "--all-tenants")[1])
    shell.run("revoke", gone)
    shell.clock.advance(DAY)
    shell.run("list")
    header, *rows = shell.stdout.splitlines()
    assert header.split()[:2] == ["ID", "NAME"]
    found = {row[14:].split()[0]: row for row in rows}
    assert "expired" in found["short"]
    assert "2026-03-02" in found["short"]
    assert "revoked" in found["gone"]
    assert "acme" in found["gone"]
    assert "mail" in found["gone"]
    assert "valid" in found["admin"]
    assert "all tenants" in found["admin"]
    assert not any(secret in shell.stdout for secret in secrets)
    shell.run("list", "--tenant", "acme")
    assert [row[14:18] for row in shell.stdout.splitlines()[1:]] == ["gone"]


def test_a_revoked_key_is_invalid_and_audited(shell: Shell) -> None:
    identifier, secret = shell.create("--role", "operator", "--tenant", "acme")
    shell.run("revoke", identifier)
    assert "within 5s" in shell.stderr
    [key] = shell.kept()
    assert not key.is_valid(secret, START)
    entries = [(entry.tenant, entry.action, entry.author, entry.target) for entry in shell.audit()]
    assert entries == [
        ("acme", "keys.revoke", "cli:ada", identifier),
        ("acme", "keys.put", "cli:ada", identifier),
        ("acme", "tenants.put", "cli:ada", "acme"),
    ]


def test_revoking_an_unknown_key_fails_without_printing_it(shell: Shell) -> None:
    with pytest.raises(NotFound, match="there is no key with this id") as caught:
        shell.run("revoke", "ms_abcdefghijkl_whole-key-by-mistake")
    assert "mistake" not in str(caught.value)


def test_a_memory_store_refuses_keys(tmp_path: Path) -> None:
    found = run_command(tmp_path, "keys", "create", "--role", "admin", "--store", "memory:")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("mainspring: --store: memory: keeps nothing")
    assert len(found.stderr.splitlines()) == 1


def test_a_key_is_kept_in_a_real_store(tmp_path: Path) -> None:
    made = run_command(tmp_path, "keys", "create", "--role", "admin", "--store", "jobs.db")
    assert made.returncode == 0, made.stderr
    read = read_key(made.stdout.strip())
    assert read is not None
    assert read[0] in run_command(tmp_path, "keys", "list", "--store", "jobs.db").stdout
    assert run_command(tmp_path, "keys", "revoke", read[0], "--store", "jobs.db").returncode == 0
    assert "revoked" in run_command(tmp_path, "keys", "list", "--store", "jobs.db").stdout
