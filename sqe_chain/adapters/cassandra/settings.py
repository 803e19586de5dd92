"""How to reach a Cassandra cluster."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CassandraSettings:
    """How to reach a cluster. Pickled with a store, password included, so that tasks can log in.

    Attributes:
        nodes: host and TCP port of some nodes; the others are found.
        keyspace: the keyspace that holds the tables.
        datacenter: the data centre whose nodes are used; empty: that of the first node that answers.
        consistency: of reads of rows, and of the commit of a conditional write.
        serial_consistency: of conditional writes, and of reads of homes and headers.
        username: empty for no login.
        password: never shown.
        tls: encrypt, and verify the servers' certificates.
        ca_file: certificates to trust; empty for the system's.
        cert_file: the client's own certificate; empty for none.
        key_file: its key.
        check_hostname: whether a certificate must name the address that was connected to.
        timeout_s: longest wait for an answer, in seconds.
        connect_timeout_s: longest wait for a connection, in seconds.
        protocol_version: of the native protocol: 5, or 4 for servers that have no other.
        batch_statements: most statements of one batch that the servers take.
    """

    nodes: tuple[tuple[str, int], ...] = (("localhost", 9042),)
    keyspace: str = "sqe_chain"
    datacenter: str = ""
    consistency: str = "LOCAL_QUORUM"
    serial_consistency: str = "LOCAL_SERIAL"
    username: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    check_hostname: bool = True
    timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    protocol_version: int = 5
    batch_statements: int = 1 << 31

    def __str__(self) -> str:
        """The address without its password."""
        user = f"{self.username}@" if self.username else ""
        nodes = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in self.nodes)
        return f"{'cassandras' if self.tls else 'cassandra'}://{user}{nodes}/{self.keyspace}"
