"""Engines outside the store that can say who owns which shard."""

from mainspring.adapters.tls import context_of
from mainspring.domain.coordination import Engine
from mainspring.domain.errors import Invalid
from mainspring.ports.clock import Clock
from mainspring.ports.registry import Registry


def make_registry(engine: Engine, clock: Clock) -> Registry:
    # Each is imported when it is used: most processes need none of them.
    match engine.kind:
        case "redis":
            try:
                from mainspring.adapters.coordination.redis import RedisRegistry
            except ModuleNotFoundError as error:
                hint = "pip install 'mainspring[redis]'"
                raise Invalid("coordination", f"Redis needs the package {error.name}", hint) from error
            return RedisRegistry(engine.url, clock)
        case "etcd":
            from mainspring.adapters.coordination.etcd import EtcdRegistry

            scheme = "http" if engine.tls is None else "https"
            hosts = [(f"[{host}]" if ":" in host else host, port) for host, port in engine.nodes]
            endpoints = [f"{scheme}://{host}:{port}" for host, port in hosts]
            return EtcdRegistry(
                endpoints,
                clock,
                root=engine.root,
                credentials=engine.credentials,
                tls=context_of(engine.tls, "coordination"),
            )
        case _:
            from mainspring.adapters.coordination.zookeeper import ZooKeeperRegistry
            from mainspring.adapters.coordination.zookeeper_session import Access

            access = Access(credentials=engine.credentials, tls=context_of(engine.tls, "coordination"))
            return ZooKeeperRegistry(engine.nodes, access, root=engine.root)
