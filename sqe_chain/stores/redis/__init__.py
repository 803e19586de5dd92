"""A store in Redis. Needs the extra `redis`."""

from sqe_chain.stores.redis.client import RedisSettings
from sqe_chain.stores.redis.store import RedisStore, open_address

__all__ = ["RedisSettings", "RedisStore", "open_address"]
