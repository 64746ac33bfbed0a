"""Engines that let in only who knows a password, or who speaks TLS."""

import subprocess
import uuid
from pathlib import Path

import httpx2
import pytest

from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.ids import SessionId
from mainspring.domain.instant import MINUTE
from tests.support.coordination_harness import make_registry
from tools.services.ensemble import Node, ask
from tools.services.etcd import Etcd
from tools.services.redis import Redis

ONE = SessionId(1)


@pytest.fixture
def namespace() -> str:
    return uuid.uuid4().hex


async def works(address: str, namespace: str) -> None:
    registry = make_registry(address)
    await registry.open(namespace)
    try:
        await registry.enter(ONE, MINUTE)
        view = await registry.look(ONE)
        assert await registry.write(ONE, {1: ONE}, view.version)
    finally:
        await registry.close()


async def is_refused(address: str, namespace: str, why: str) -> None:
    registry = make_registry(address)
    await registry.open(namespace)
    try:
        with pytest.raises(StoreUnavailable, match=why):
            await registry.enter(ONE, MINUTE)
    finally:
        await registry.close()


class GuardedEtcd(Etcd):
    """One node, which lets nobody in without a password."""

    name = "etcd-guarded"
    size = 1

    def start(self) -> None:
        super().start()
        for path, question in (
            ("user/add", {"name": "root", "password": "hush"}),
            ("role/add", {"name": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("enable", {}),
        ):
            httpx2.post(f"http://{self.nodes[0].address}/v3/auth/{path}", json=question).raise_for_status()


async def test_etcd_asks_for_a_password(tmp_path: Path, namespace: str) -> None:
    etcd = GuardedEtcd(tmp_path)
    if not etcd.installed():
        pytest.skip("etcd is not installed")
    etcd.start()
    try:
        await is_refused(etcd.address(), namespace, "user name is empty")
        wrong = etcd.address().replace("//", "//root:wrong@")
        await is_refused(wrong, namespace, "does not know this user and password")
        await works(etcd.address().replace("//", "//root:hush@"), namespace)
    finally:
        etcd.remove()


class GuardedRedis(Redis):
    """With a password, and a port for TLS beside the plain one."""

    name = "redis-guarded"
    port_names = ("client", "tls")

    def command(self, node: Node) -> list[str]:
        command = super().command(node)
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"),
                *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "certificate.pem"),
            ],
            cwd=node.directory,
            check=True,
            capture_output=True,
        )
        settings = {
            "requirepass": "hush",
            "tls-port": node.ports["tls"],
            "tls-cert-file": node.directory / "certificate.pem",
            "tls-key-file": node.directory / "key.pem",
            "tls-auth-clients": "no",
        }
        with (node.directory / "redis.conf").open("a") as configuration:
            configuration.writelines(f"{name} {value}\n" for name, value in settings.items())
        return command

    def serving(self, node: Node) -> bool:
        return ask(node.address, b"PING\r\n").startswith(b"-NOAUTH")


async def test_redis_asks_for_a_password_and_speaks_tls(tmp_path: Path, namespace: str) -> None:
    redis = GuardedRedis(tmp_path)
    if not redis.installed():
        pytest.skip("Redis is not installed")
    redis.start()
    try:
        (node,) = redis.nodes
        await is_refused(f"redis://{node.address}/0", namespace, "already authenticated|Authentication required")
        await is_refused(f"redis://:wrong@{node.address}/0", namespace, "invalid username-password")
        await works(f"redis://:hush@{node.address}/0", namespace)
        tls, authority = f"rediss://:hush@127.0.0.1:{node.ports['tls']}/0", node.directory / "certificate.pem"
        # Nobody vouches for this certificate, unless it is named.
        await is_refused(tls, namespace, "certificate verify failed")
        await works(f"{tls}?ssl_ca_certs={authority}", namespace)
    finally:
        redis.remove()
