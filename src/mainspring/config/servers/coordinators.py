"""Builds the coordinators outside the store, which assign shards to schedulers."""

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.cluster.coordination import CoordinatorAddress
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.registry import Registry
from mainspring.integrations.tls import build_tls_context


def make_registry(engine: CoordinatorAddress, clock: Clock) -> Registry:
    # Imported on use: most processes need none of the clients.
    match engine.kind:
        case "redis":
            try:
                from mainspring.integrations.redis.coordination import RedisRegistry
            except ModuleNotFoundError as error:
                hint = "pip install 'mainspring[redis]'"
                raise Invalid("coordination", f"Redis needs the package {error.name}", hint) from error
            return RedisRegistry(engine.url, clock)
        case "etcd":
            from mainspring.integrations.etcd.coordination import EtcdRegistry

            scheme = "http" if engine.tls is None else "https"
            hosts = [(f"[{host}]" if ":" in host else host, port) for host, port in engine.nodes]
            endpoints = [f"{scheme}://{host}:{port}" for host, port in hosts]
            return EtcdRegistry(
                endpoints,
                clock,
                root=engine.root,
                credentials=engine.credentials,
                tls=build_tls_context(engine.tls, "coordination"),
            )
        case _:
            from mainspring.integrations.zookeeper.coordination import ZooKeeperRegistry
            from mainspring.integrations.zookeeper.session import Access

            access = Access(credentials=engine.credentials, tls=build_tls_context(engine.tls, "coordination"))
            return ZooKeeperRegistry(engine.nodes, access, root=engine.root)
