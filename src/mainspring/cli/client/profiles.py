"""Profiles: named APIs and stores, kept in ``~/.config/mainspring/profiles.toml``."""

import json
import os
import stat
import sys
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mainspring.cli.output import AsJson, build_table, echo_json, make_console
from mainspring.config.sections.addresses import hide_secrets
from mainspring.core.model.base.errors import Conflict, Invalid, NotFound


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An API with its key, or a store."""

    url: str = ""
    key: str = ""
    key_file: str = ""
    store: str = ""
    tenant: str = ""

    def check(self, where: str) -> None:
        if bool(self.url) == bool(self.store):
            raise Invalid(where, "has to have either url or store", "one of the two")
        if self.store and (self.key or self.key_file):
            raise Invalid(where, "has a key, which a store does not ask for")
        if self.key and self.key_file:
            raise Invalid(where, "has both key and key_file", "one of the two")

    def secret(self) -> str | None:
        if not self.key_file:
            return self.key or None
        try:
            return Path(self.key_file).expanduser().read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise Invalid("key_file", f"{self.key_file} cannot be read: {why}") from None


class Profiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of the profiles file."""

    use: str = ""
    """The profile that is used if a command names no target."""
    profiles: dict[str, Profile] = {}

    def get(self, name: str) -> Profile:
        if name not in self.profiles:
            known = ", ".join(sorted(self.profiles)) or "there are none; see: mainspring profiles create --help"
            raise NotFound(f"there is no profile {name!r} ({known})")
        found = self.profiles[name]
        found.check(f"profile {name}")
        return found


class ProfileOut(msgspec.Struct, frozen=True, kw_only=True):
    """A profile without its secret."""

    name: str
    used: bool
    url: str | None
    store: str | None
    tenant: str | None
    key: str


def file() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "mainspring" / "profiles.toml"


def read() -> Profiles:
    path = file()
    try:
        with path.open("rb") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            found = msgspec.convert(tomllib.load(opened), Profiles)
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise Invalid(str(path), f"cannot be read: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise Invalid(str(path), str(error).replace("`", "'")) from None
    except ValueError as error:
        raise Invalid(str(path), f"is not TOML: {error}") from None
    if mode & 0o077 and any(profile.key for profile in found.profiles.values()):
        typer.echo(f"mainspring: warning: {path} holds keys and others can read it: chmod 600 {path}", err=True)
    return found


def write(profiles: Profiles) -> None:
    lines = ["# Written by mainspring profiles."]
    if profiles.use:
        lines.append(f"use = {_quoted(profiles.use)}")
    for name, profile in sorted(profiles.profiles.items()):
        lines += ["", f"[profiles.{_quoted(name)}]"]
        lines += [f"{field} = {_quoted(value)}" for field, value in msgspec.structs.asdict(profile).items() if value]
    path = file()
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Create the file with its permissions before writing the keys.
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            opened.write("\n".join(lines) + "\n")
        fresh.replace(path)
    except OSError as error:
        raise Invalid(str(path), f"cannot be written: {error.strerror}") from None


def _quoted(text: str) -> str:
    # A JSON string is also a valid TOML string, as long as it has no control characters.
    return json.dumps(text, ensure_ascii=False)


def names(incomplete: str) -> list[str]:
    """Complete a profile name for the shell."""
    return [name for name in read().profiles if name.startswith(incomplete)]


def register(application: typer.Typer) -> None:
    group = typer.Typer(name="profiles", help="Name the APIs and stores that you use.", no_args_is_help=True)
    group.command("list")(list_profiles)
    group.command("create")(create)
    group.command("update")(update)
    group.command("use")(use)
    group.command("delete")(delete)
    application.add_typer(group)


Name = Annotated[str, typer.Argument(help="The profile.", metavar="NAME", autocompletion=names, show_default=False)]


def list_profiles(json: AsJson = False) -> None:
    """List the profiles; the one in use has a star. Keys are not shown.

    Example: mainspring profiles list
    """
    found = read()
    items = [
        ProfileOut(
            name=name,
            used=name == found.use,
            url=profile.url or None,
            store=hide_secrets(profile.store) if profile.store else None,
            tenant=profile.tenant or None,
            key="kept here" if profile.key else profile.key_file or "none",
        )
        for name, profile in sorted(found.profiles.items())
    ]
    if json:
        echo_json({"items": items})
        return
    shown = build_table("", "NAME", "TARGET", "TENANT", "KEY")
    for item in items:
        shown.add_row("*" if item.used else "", item.name, item.url or item.store, item.tenant or "", item.key)
    make_console().print(shown)


Url = Annotated[str, typer.Option("--url", help="The address of an API.", show_default=False)]
Store = Annotated[str, typer.Option("--store", help="A path for SQLite, or postgresql://…", show_default=False)]
KeyFile = Annotated[str, typer.Option("--key-file", help="A file with the API key.", show_default=False)]
KeyStdin = Annotated[
    bool, typer.Option("--key-stdin", help="Read the API key from stdin, and store it in the profile.")
]
Tenant = Annotated[str, typer.Option("--tenant", help="The default tenant of this profile.", show_default=False)]


def create(
    name: Name,
    url: Url = "",
    store: Store = "",
    key_file: KeyFile = "",
    key_stdin: KeyStdin = False,
    tenant: Tenant = "",
) -> None:
    """Create a profile.

    Examples:

    mainspring profiles create prod --url https://jobs.example.org --key-file ~/.keys/prod

    mainspring profiles create prod --url https://jobs.example.org --key-stdin < prod.key

    mainspring profiles create here --store ./mainspring.db
    """
    if name in read().profiles:
        raise Conflict(f"profile {name} exists; to change it: mainspring profiles update {name}")
    _save(name, _read_profile(name, url, store, key_file, key_stdin, tenant))
    typer.echo(
        f"profile {name} is created; use it with --profile {name}, or always: mainspring profiles use {name}", err=True
    )


def update(
    name: Name,
    url: Url = "",
    store: Store = "",
    key_file: KeyFile = "",
    key_stdin: KeyStdin = False,
    tenant: Tenant = "",
) -> None:
    """Change a profile; options that you omit keep their values. Another address or store drops the key.

    Example: mainspring profiles update prod --key-stdin < new.key
    """
    # A damaged profile can be repaired, so it is not checked before.
    current = read().profiles.get(name)
    if current is None:
        raise NotFound(f"there is no profile {name!r}; to create it: mainspring profiles create {name}")
    changes = _read_profile(name, url, store, key_file, key_stdin, tenant)
    if changes == Profile():
        raise Invalid("--url", "no change given", "for example --key-file ~/.keys/prod")
    # A key is never sent to another address than the one that it was given for.
    moved = bool(changes.store) or changes.url not in ("", current.url)
    if moved:
        current = Profile(tenant=current.tenant)
    if changes.key or changes.key_file:
        current = msgspec.structs.replace(current, key="", key_file="")
    given = {field: value for field, value in msgspec.structs.asdict(changes).items() if value}
    _save(name, msgspec.structs.replace(current, **given))
    typer.echo(f"profile {name} is changed", err=True)


def _read_profile(name: str, url: str, store: str, key_file: str, key_stdin: bool, tenant: str) -> Profile:
    if not name.isprintable() or not name or any(not part.isprintable() for part in (url, store, key_file, tenant)):
        raise Invalid("profile", "has characters that cannot be printed, or no name")
    if url:
        from mainspring.sdk.backends.client import check_url

        url = check_url(url)
    key = sys.stdin.readline().strip() if key_stdin else ""
    if key_stdin and not (key and key.isprintable()):
        raise Invalid("--key-stdin", "there is no key on stdin")
    return Profile(url=url, store=store, key=key, key_file=key_file, tenant=tenant)


def _save(name: str, profile: Profile) -> None:
    profile.check(f"profile {name}")
    found = read()
    write(Profiles(use=found.use, profiles={**found.profiles, name: profile}))


def use(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The profile; without it, none is in use.", metavar="[NAME]", autocompletion=names, show_default=False
        ),
    ] = None,
) -> None:
    """Use a profile by default.

    Options and environment variables (--profile, --url, --store) take precedence. Without a name, no profile is used.

    Example: mainspring profiles use prod
    """
    found = read()
    if name is not None:
        found.get(name)
    write(Profiles(use=name or "", profiles=found.profiles))
    typer.echo("no profile is used" if name is None else f"profile {name} is used", err=True)


def delete(name: Name) -> None:
    """Delete a profile. Its API or store is not touched.

    Example: mainspring profiles delete prod
    """
    found = read()
    if name not in found.profiles:
        found.get(name)
    rest = {other: profile for other, profile in found.profiles.items() if other != name}
    write(Profiles(use="" if found.use == name else found.use, profiles=rest))
    typer.echo(f"profile {name} is deleted", err=True)
