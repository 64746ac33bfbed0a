"""The tables, settings, claims and commands of docs/operate/authentication.md are correct."""

import asyncio
import json
import re
import shlex
from pathlib import Path

import pytest
from joserfc.jwk import OKPKey

from mainspring.cli.client import target
from mainspring.config.loading import load
from mainspring.core.model.access.access import GRANTS, Permission, Principal, Role
from mainspring.http.auth.tokens import JwtTokens, SingleKey
from tests.api.conftest import Service, memory_only
from tests.support.clock import ManualClock
from tests.support.key_shell import Shell
from tests.support.tokens import AUDIENCE, ISSUER, sign

PAGE = (Path(__file__).parents[2] / "docs/operate/authentication.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def test_the_table_of_roles_matches_the_grants() -> None:
    table = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")
    ]
    (_, *permissions), _, *rows = table
    assert set(permissions) == set(Permission)
    assert [row[0].strip("`") for row in rows] == [role.value for role in Role]
    for name, *cells in rows:
        role = Role(name.strip("`"))
        granted = {permission for permission, cell in zip(permissions, cells, strict=True) if cell}
        assert granted == GRANTS[role], role
        bound = Principal(name="x", role=role, tenant="acme")
        yes = {permission for permission, cell in zip(permissions, cells, strict=True) if cell == "yes"}
        assert yes == {permission for permission in Permission if bound.may(permission)}, role


@pytest.mark.parametrize("text", blocks("toml"))
def test_the_settings_of_the_authentication_guide_are_valid(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mainspring.toml"
    file.write_text(text)
    assert load(environment={}, file=file).auth.mode in ("keys", "both", "jwt")


async def test_a_token_with_the_claims_of_the_guide_is_accepted() -> None:
    [text] = blocks("json")
    claims = json.loads(text)
    key = OKPKey.generate_key("Ed25519")
    tokens = JwtTokens(SingleKey(key), ManualClock(), algorithm="EdDSA", issuer=ISSUER, audience=AUDIENCE)
    found = await tokens.principal(sign(key, "EdDSA", claims))
    assert found == Principal(name="user:ada@example.org", role=Role.OPERATOR, tenant="acme")


def test_the_commands_of_the_authentication_guide_run(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell()
    monkeypatch.setattr(target, "open_runtime", shell.open)
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("mainspring ")]
    assert len(lines) == 4
    for line in lines:
        words = shlex.split(line.partition(" > ")[0])[2:]
        if "revoke" in words:
            words[-1] = shell.kept()[0].id
        shell.run(*words)
    assert {key.role for key in shell.kept()} == {Role.ADMIN, Role.SUBMITTER}


@memory_only
async def test_the_first_request_of_the_authentication_guide_succeeds(
    served: tuple[Service, str], tmp_path: Path
) -> None:
    service, url = served
    (tmp_path / "admin.key").write_text(await service.key(Role.ADMIN, None) + "\n")
    [line] = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("curl ")]
    script = line.replace("http://127.0.0.1:7070", url).replace("curl ", "curl -sS ")
    process = await asyncio.create_subprocess_exec("sh", "-euc", script, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert json.loads(out) == {"items": [], "nextCursor": None}
