"""Builds the coordinators outside the store, which assign shards to schedulers."""

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.cluster.coordination import CoordinatorAddress
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.registry import Registry
from mainspring.integrations.tls import build_tls_context


def make_registry(address: CoordinatorAddress, clock: Clock) -> Registry:
    # Imported on use: most processes need none of the clients.
    match address.kind:
        case "redis":
            try:
                from mainspring.integrations.redis.coordination import RedisRegistry
            except ModuleNotFoundError as error:
                hint = "pip install 'mainspring[redis]'"
                raise Invalid("coordination", f"Redis needs the package {error.name}", hint) from error
            return RedisRegistry(address.url, clock)
        case "etcd":
            from mainspring.integrations.etcd.coordination import EtcdRegistry

            scheme = "http" if address.tls is None else "https"
            hosts = [(f"[{host}]" if ":" in host else host, port) for host, port in address.nodes]
            endpoints = [f"{scheme}://{host}:{port}" for host, port in hosts]
            return EtcdRegistry(
                endpoints,
                clock,
                root=address.root,
                credentials=address.credentials,
                tls=build_tls_context(address.tls, "coordination"),
            )
        case _:
            from mainspring.integrations.zookeeper.coordination import ZooKeeperRegistry
            from mainspring.integrations.zookeeper.session import Access

            access = Access(credentials=address.credentials, tls=build_tls_context(address.tls, "coordination"))
            return ZooKeeperRegistry(address.nodes, access, root=address.root)
