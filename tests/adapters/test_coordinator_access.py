"""Coordinators that require a password or TLS."""

import gc
import re
import ssl
import uuid
from pathlib import Path

import httpx2
import pytest

from mainspring.core.model.base.errors import Invalid, StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MINUTE
from tests.support.certificates import make_certificate
from tests.support.coordination_harness import make_registry
from tests.support.servers import not_here, require
from tests.support.waiting import DEADLINE_SECONDS, eventually
from tools.services.ensemble import Node, ask
from tools.services.etcd import Etcd
from tools.services.redis import Redis
from tools.services.zookeeper import ZooKeeper

ONE, OTHER = SessionId(1), SessionId(2)


@pytest.fixture
def namespace() -> str:
    return uuid.uuid4().hex


async def check_access(address: str, namespace: str, member: SessionId = ONE) -> None:
    registry = make_registry(address)
    await registry.open(namespace)

    async def enters() -> bool:
        try:
            await registry.enter(member, MINUTE)
        except StoreUnavailable as error:
            # A busy machine may not finish a handshake in time.
            if "timeout" not in str(error).lower():
                raise
            return False
        return True

    try:
        await eventually(enters)
        view = await registry.look(member)
        assert await registry.write(member, {1: member}, view.version)
    finally:
        await registry.close()


async def check_refusal(address: str, namespace: str, reason: str) -> None:
    registry = make_registry(address)
    await registry.open(namespace)

    async def read_error() -> str:
        """Empty after a timeout: a busy machine may not finish a handshake in time."""
        with pytest.raises(StoreUnavailable) as raised:
            await registry.enter(ONE, MINUTE)
        message = str(raised.value)
        return "" if "timeout" in message.lower() else message

    try:
        assert re.search(reason, await eventually(read_error))
    finally:
        await registry.close()


class GuardedEtcd(Etcd):
    """One node, which requires a password."""

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
            httpx2.post(
                f"http://{self.nodes[0].address}/v3/auth/{path}", json=question, timeout=DEADLINE_SECONDS
            ).raise_for_status()


async def test_etcd_with_a_password(tmp_path: Path, namespace: str) -> None:
    require("etcd")
    etcd = GuardedEtcd(tmp_path)
    if not etcd.installed():
        not_here("etcd is not installed")
    etcd.start()
    try:
        await check_refusal(etcd.address(), namespace, "user name is empty")
        wrong = etcd.address().replace("//", "//root:wrong@")
        await check_refusal(wrong, namespace, "does not know this user and password")
        await check_access(etcd.address().replace("//", "//root:hush@"), namespace)
    finally:
        etcd.remove()


class SealedEtcd(Etcd):
    """One node, which requires TLS and a certificate of the client."""

    name = "etcd-sealed"
    size = 1

    def command(self, node: Node) -> list[str]:
        make_certificate(node.directory)
        certificate = node.directory / "certificate.pem"
        return [
            *(word.replace(f"http://{node.address}", f"https://{node.address}") for word in super().command(node)),
            f"--cert-file={certificate}",
            f"--key-file={node.directory}/key.pem",
            f"--trusted-ca-file={certificate}",
            "--client-cert-auth",
        ]

    def serving(self, node: Node) -> bool:
        files = node.directory
        trusted = ssl.create_default_context(cafile=files / "certificate.pem")
        trusted.load_cert_chain(files / "certificate.pem", files / "key.pem")
        try:
            url = f"https://{node.address}/health"
            return b"true" in httpx2.get(url, verify=trusted, timeout=DEADLINE_SECONDS).content
        except httpx2.TransportError:
            return False


# A handshake that fails leaves its socket to the garbage collector; collect it here, not in another test.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_etcd_with_tls(tmp_path: Path, namespace: str) -> None:
    require("etcd")
    etcd = SealedEtcd(tmp_path)
    if not etcd.installed():
        not_here("etcd is not installed")
    etcd.start()
    try:
        tls, files = etcd.address().replace("etcd:", "etcds:"), etcd.nodes[0].directory
        trusting = f"{tls}?ssl_ca_certs={files}/certificate.pem"
        await check_refusal(tls, namespace, "certificate verify failed")
        await check_refusal(trusting, namespace, "certificate required|does not answer")
        await check_access(f"{trusting}&ssl_certfile={files}/certificate.pem&ssl_keyfile={files}/key.pem", namespace)
        with pytest.raises(Invalid, match=r"coordination: cannot use .*nowhere\.pem: No such file"):
            make_registry(f"{tls}?ssl_ca_certs={files}/nowhere.pem")
    finally:
        etcd.remove()
        gc.collect()


class SealedZooKeeper(ZooKeeper):
    """One node, with a port for TLS beside the plain one."""

    name = "zookeeper-sealed"
    size = 1
    port_names = (*ZooKeeper.port_names, "tls")

    def command(self, node: Node) -> list[str]:
        command = super().command(node)
        make_certificate(node.directory)
        both = node.directory / "both.pem"
        both.write_text("".join((node.directory / name).read_text() for name in ("key.pem", "certificate.pem")))
        settings = {
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": node.ports["tls"],
            "secureClientPortAddress": "127.0.0.1",
            "ssl.keyStore.location": both,
            "ssl.keyStore.type": "PEM",
            "ssl.clientAuth": "none",
        }
        with (node.directory / "zoo.cfg").open("a") as configuration:
            configuration.writelines(f"{name}={value}\n" for name, value in settings.items())
        where = command.index("-cp") + 1
        jars = "".join(f":/usr/share/java/netty-{part}.jar" for part in ("codec", "resolver"))
        return [*command[:where], command[where] + jars, *command[where + 1 :]]


async def test_zookeeper_with_a_password_and_tls(tmp_path: Path, namespace: str) -> None:
    require("zookeeper")
    zookeeper = SealedZooKeeper(tmp_path)
    if not zookeeper.installed():
        not_here("ZooKeeper is not installed")
    zookeeper.start()
    try:
        (node,) = zookeeper.nodes
        known = f"zookeeper://me:hush@{node.address}/private"
        await check_access(known, namespace)
        # Nodes that one user has created are closed to every other user.
        await check_refusal(f"zookeeper://{node.address}/private", namespace, "for another user and password")
        await check_refusal(known.replace("hush", "wrong"), namespace, "for another user and password")
        await check_access(f"zookeeper://{node.address}/open", namespace)
        tls = f"zookeepers://me:hush@127.0.0.1:{node.ports['tls']}/private"
        await check_refusal(tls, namespace, "certificate verify failed")
        await check_access(f"{tls}?ssl_ca_certs={node.directory}/certificate.pem", namespace, OTHER)
    finally:
        zookeeper.remove()


class GuardedRedis(Redis):
    """One server with a password, and a port for TLS beside the plain one."""

    name = "redis-guarded"
    port_names = ("client", "tls")

    def command(self, node: Node) -> list[str]:
        command = super().command(node)
        make_certificate(node.directory)
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


async def test_redis_with_a_password_and_tls(tmp_path: Path, namespace: str) -> None:
    require("redis")
    redis = GuardedRedis(tmp_path)
    if not redis.installed():
        not_here("Redis is not installed")
    redis.start()
    try:
        (node,) = redis.nodes
        await check_refusal(f"redis://{node.address}/0", namespace, "already authenticated|Authentication required")
        await check_refusal(f"redis://:wrong@{node.address}/0", namespace, "invalid username-password")
        await check_access(f"redis://:hush@{node.address}/0", namespace)
        tls, authority = f"rediss://:hush@127.0.0.1:{node.ports['tls']}/0", node.directory / "certificate.pem"
        # The certificate is self-signed.
        await check_refusal(tls, namespace, "certificate verify failed")
        await check_access(f"{tls}?ssl_ca_certs={authority}", namespace)
    finally:
        redis.remove()
