"""Engines that let in only who knows a password, or who speaks TLS."""

import gc
import ssl
import uuid
from pathlib import Path

import httpx2
import pytest

from mainspring.domain.errors import Invalid, StoreUnavailable
from mainspring.domain.ids import SessionId
from mainspring.domain.instant import MINUTE
from tests.support.certificates import make_certificate
from tests.support.coordination_harness import make_registry
from tests.support.servers import not_here
from tools.services.ensemble import Node, ask
from tools.services.etcd import Etcd
from tools.services.redis import Redis
from tools.services.zookeeper import ZooKeeper

ONE, OTHER = SessionId(1), SessionId(2)


@pytest.fixture
def namespace() -> str:
    return uuid.uuid4().hex


async def works(address: str, namespace: str, member: SessionId = ONE) -> None:
    registry = make_registry(address)
    await registry.open(namespace)
    try:
        await registry.enter(member, MINUTE)
        view = await registry.look(member)
        assert await registry.write(member, {1: member}, view.version)
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
        not_here("etcd is not installed")
    etcd.start()
    try:
        await is_refused(etcd.address(), namespace, "user name is empty")
        wrong = etcd.address().replace("//", "//root:wrong@")
        await is_refused(wrong, namespace, "does not know this user and password")
        await works(etcd.address().replace("//", "//root:hush@"), namespace)
    finally:
        etcd.remove()


class SealedEtcd(Etcd):
    """One node that speaks TLS alone, with those who have a certificate."""

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
            return b"true" in httpx2.get(f"https://{node.address}/health", verify=trusted).content
        except httpx2.TransportError:
            return False


# A handshake that fails leaves its socket to the garbage collector: it is collected here, and not in another test.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_etcd_speaks_tls(tmp_path: Path, namespace: str) -> None:
    etcd = SealedEtcd(tmp_path)
    if not etcd.installed():
        not_here("etcd is not installed")
    etcd.start()
    try:
        tls, files = etcd.address().replace("etcd:", "etcds:"), etcd.nodes[0].directory
        trusting = f"{tls}?ssl_ca_certs={files}/certificate.pem"
        await is_refused(tls, namespace, "certificate verify failed")
        await is_refused(trusting, namespace, "certificate required|does not answer")
        await works(f"{trusting}&ssl_certfile={files}/certificate.pem&ssl_keyfile={files}/key.pem", namespace)
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


async def test_zookeeper_asks_for_a_password_and_speaks_tls(tmp_path: Path, namespace: str) -> None:
    zookeeper = SealedZooKeeper(tmp_path)
    if not zookeeper.installed():
        not_here("ZooKeeper is not installed")
    zookeeper.start()
    try:
        (node,) = zookeeper.nodes
        known = f"zookeeper://me:hush@{node.address}/private"
        await works(known, namespace)
        # What one user has made is for nobody else.
        await is_refused(f"zookeeper://{node.address}/private", namespace, "for another user and password")
        await is_refused(known.replace("hush", "wrong"), namespace, "for another user and password")
        await works(f"zookeeper://{node.address}/open", namespace)
        tls = f"zookeepers://me:hush@127.0.0.1:{node.ports['tls']}/private"
        await is_refused(tls, namespace, "certificate verify failed")
        await works(f"{tls}?ssl_ca_certs={node.directory}/certificate.pem", namespace, OTHER)
    finally:
        zookeeper.remove()


class GuardedRedis(Redis):
    """With a password, and a port for TLS beside the plain one."""

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


async def test_redis_asks_for_a_password_and_speaks_tls(tmp_path: Path, namespace: str) -> None:
    redis = GuardedRedis(tmp_path)
    if not redis.installed():
        not_here("Redis is not installed")
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
