"""Engines beside the store that bring workers hints of what waits."""

from mainspring.domain.amqp import SCHEMES
from mainspring.domain.errors import Invalid
from mainspring.domain.hints import Sealer
from mainspring.domain.kafka import SCHEME as KAFKA
from mainspring.ports.clock import Clock
from mainspring.ports.dispatch import Dispatch


def make_dispatch(url: str, clock: Clock, sealer: Sealer, datacenter: str = "") -> Dispatch:
    """``datacenter``: where this process is."""
    # Imported when it is used: most processes need none of them.
    if url.startswith(SCHEMES):
        try:
            from mainspring.adapters.dispatch.rabbitmq import RabbitDispatch
        except ModuleNotFoundError as error:
            raise _missing("RabbitMQ", "rabbitmq", error) from error
        return RabbitDispatch(url, clock, sealer)
    if url.startswith(KAFKA):
        try:
            from mainspring.adapters.dispatch.kafka import KafkaDispatch
        except ModuleNotFoundError as error:
            raise _missing("Kafka", "kafka", error) from error
        return KafkaDispatch(url, clock, sealer, datacenter=datacenter)
    try:
        from mainspring.adapters.dispatch.redis import RedisDispatch
    except ModuleNotFoundError as error:
        raise _missing("Redis", "redis", error) from error
    return RedisDispatch(url, clock, sealer)


def _missing(what: str, extra: str, error: ModuleNotFoundError) -> Invalid:
    return Invalid("dispatch.engine", f"{what} needs the package {error.name}", f"pip install 'mainspring[{extra}]'")
