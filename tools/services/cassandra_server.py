"""Apache Cassandra: one node, from Maven Central's jars."""

from __future__ import annotations

import json
import socket
import struct
from enum import IntEnum

from tools.services.java import Artifact, JavaService
from tools.services.service import receive

LOGGING = """<configuration>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%date %-5level %logger{0}: %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="console"/></root>
</configuration>
"""
FIRST_PASSWORD = "cassandra"
"""What the first user has before it is given another one."""

OPENS = ("java.base/java.io", "java.base/jdk.internal.ref", "java.base/sun.nio.ch")


class Code(IntEnum):
    """Kinds of frames of Cassandra's protocol."""

    ERROR = 0x00
    STARTUP = 0x01
    READY = 0x02
    OPTIONS = 0x05
    SUPPORTED = 0x06
    QUERY = 0x07
    RESULT = 0x08
    AUTH_RESPONSE = 0x0F
    AUTH_SUCCESS = 0x10


class Cassandra(JavaService):
    """A Cassandra node; with ``commitlog_sync: batch``, so that what it has acknowledged survives kill -9."""

    kind = "cassandra"
    title = "Apache Cassandra"
    well_known_ports = (9042, 7000)
    user = "cassandra"
    artifacts = (Artifact("org.apache.cassandra", "cassandra-all", "5.0.9"),)
    java_versions = range(11, 18)
    main = "org.apache.cassandra.service.CassandraDaemon"

    def java_options(self) -> list[str]:
        """Write cassandra.yaml (as JSON, which is YAML) and how it logs."""
        (self.folder / "logback.xml").write_text(LOGGING, "utf-8")
        settings = self.folder / "cassandra.yaml"
        settings.touch(0o600)
        settings.write_text(json.dumps(self._settings(), indent=1) + "\n", "utf-8")
        properties = {
            "io.netty.tryReflectionSetAccessible": "true",
            "cassandra.config": settings.as_uri(),
            "cassandra.storagedir": self.folder,
            "cassandra.logdir": self.folder,
            "logback.configurationFile": self.folder / "logback.xml",
            "cassandra-foreground": "yes",
            "cassandra.skip_wait_for_gossip_to_settle": 0,
            "cassandra.ring_delay_ms": 0,
            "cassandra.superuser_setup_delay_ms": 0,
            "cassandra.shutdown_announce_in_ms": 0,
            "cassandra.auth_bcrypt_gensalt_log2_rounds": 4,
        }
        memory = ["-Xss256k", "-XX:MaxDirectMemorySize=256m"]
        opens = [f"--add-opens={module}=ALL-UNNAMED" for module in OPENS]
        return [*memory, *opens, *(f"-D{key}={value}" for key, value in properties.items())]

    def arguments(self) -> list[str]:
        """Nothing: all is in the settings."""
        return []

    def answers(self) -> bool:
        """OPTIONS; where there is a password, log in with it, after giving it to the user of a new node."""
        if self.password is None:
            with self.connect() as connection:
                return ask(connection, Code.OPTIONS, b"")[0] == Code.SUPPORTED
        if self._log_in(self.password):
            return True
        change = f"ALTER ROLE {self.user} WITH PASSWORD = '{self.password}'"
        return self._log_in(FIRST_PASSWORD, change) and self._log_in(self.password)

    def how_to_connect(self) -> str:
        """cassandra-driver's words."""
        words = [f'["{self.host}"]', f"port={self.port}"]
        if self.tls is not None:
            words.append("ssl_context=…")
        if self.password is not None:
            words.append(f'auth_provider=PlainTextAuthProvider("{self.user}", …)')
        return f"Cluster({', '.join(words)})"

    def _log_in(self, password: str, query: str | None = None) -> bool:
        """Say whether a password is right, and a query works where one is given."""
        with self.connect() as connection:
            ask(connection, Code.STARTUP, struct.pack(">H", 1) + text("CQL_VERSION") + text("3.0.0"))
            token = f"\0{self.user}\0{password}".encode()
            code, _ = ask(connection, Code.AUTH_RESPONSE, struct.pack(">i", len(token)) + token)
            if code != Code.AUTH_SUCCESS:
                return False
            if query is None:
                return True
            body = struct.pack(">i", len(query)) + query.encode() + struct.pack(">HB", 1, 0)
            return ask(connection, Code.QUERY, body)[0] == Code.RESULT

    def _settings(self) -> dict[str, object]:
        """Give cassandra.yaml."""
        clients, storage = self.ports
        seeds = [{"seeds": f"{self.host}:{storage}"}]
        settings: dict[str, object] = {
            "cluster_name": "headrace",
            "num_tokens": 1,
            "initial_token": "0",
            "auto_bootstrap": False,
            "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
            "endpoint_snitch": "SimpleSnitch",
            "seed_provider": [
                {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": seeds}
            ],
            "listen_address": self.host,
            "rpc_address": self.host,
            "storage_port": storage,
            "native_transport_port": clients,
            "data_file_directories": [str(self.folder / "data")],
            "commitlog_directory": str(self.folder / "commitlog"),
            "hints_directory": str(self.folder / "hints"),
            "saved_caches_directory": str(self.folder / "saved_caches"),
            "cdc_raw_directory": str(self.folder / "cdc_raw"),
            "commitlog_sync": "batch",
            "commitlog_segment_size": "8MiB",
            "commitlog_total_space": "64MiB",
            "memtable_heap_space": "64MiB",
            "memtable_offheap_space": "64MiB",
            "memtable_allocation_type": "heap_buffers",
            "disk_access_mode": "mmap_index_only",
            "file_cache_size": "32MiB",
            "networking_cache_size": "16MiB",
            "key_cache_size": "8MiB",
            "concurrent_reads": 8,
            "concurrent_writes": 8,
            "native_transport_max_threads": 16,
            "concurrent_compactors": 1,
            "auto_snapshot": False,
        }
        if self.password is not None:
            settings |= {
                "authenticator": "PasswordAuthenticator",
                "authorizer": "CassandraAuthorizer",
                "role_manager": "CassandraRoleManager",
            }
        if self.tls is not None:
            settings["client_encryption_options"] = {
                "enabled": True,
                "optional": False,
                "keystore": str(self.tls.store),
                "keystore_password": self._secret("store-password"),
                "store_type": "PKCS12",
                "require_client_auth": False,
            }
        return settings


def text(value: str) -> bytes:
    """Write a text as Cassandra's protocol does."""
    return struct.pack(">H", len(value)) + value.encode()


def ask(connection: socket.socket, code: Code, body: bytes) -> tuple[int, bytes]:
    """Send a frame (protocol 4), and give the code and the body of the answer."""
    connection.sendall(struct.pack(">BBHBI", 4, 0, 0, code, len(body)) + body)
    _, _, _, answer, size = struct.unpack(">BBHBI", receive(connection, 9))
    return answer, receive(connection, size)
