"""A store in Redis: one server, a cluster, or a master behind sentinels. Needs the extra `redis`."""

from sqe_chain.adapters.redis.address import open_address
from sqe_chain.adapters.redis.connections import RedisSettings
from sqe_chain.adapters.redis.store import RedisStore

__all__ = ["RedisSettings", "RedisStore", "open_address"]
