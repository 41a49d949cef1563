"""Redis, from Debian's package."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from tools.services.packages import ensure
from tools.services.service import Service


class Redis(Service):
    """A Redis server; what it answered survives kill -9 (it appends to a file before it answers)."""

    kind = "redis"
    title = "Redis"
    well_known_ports = (6379,)

    def prepare(self) -> None:
        """Install redis-server if it is not there."""
        ensure("redis-server")

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        """Write redis.conf: with ``everysec`` a killed process loses nothing, a machine up to a second."""
        (self.folder / "data").mkdir(exist_ok=True)
        lines = [
            f"bind {self.host}",
            f'dir "{self.folder / "data"}"',
            'save ""',
            "appendonly yes",
            "appendfsync everysec",
            "daemonize no",
        ]
        if self.password is not None:
            lines.append(f"requirepass {self.password}")
        if self.tls is None:
            lines.append(f"port {self.port}")
        else:
            lines += [
                "port 0",
                f"tls-port {self.port}",
                f'tls-cert-file "{self.tls.certificate}"',
                f'tls-key-file "{self.tls.key}"',
                f'tls-ca-cert-file "{self.tls.ca}"',
                "tls-auth-clients no",
            ]
        settings = self.folder / "redis.conf"
        settings.touch(0o600)
        settings.write_text("\n".join(lines) + "\n", "utf-8")
        return [shutil.which("redis-server") or "redis-server", str(settings)], {}

    def answers(self) -> bool:
        """PING; while it reads its data it says LOADING instead of PONG."""
        with self.connect() as connection:
            if self.password is not None:
                connection.sendall(f"AUTH {self.password}\r\n".encode())
                if not connection.recv(512).startswith(b"+OK"):
                    return False
            connection.sendall(b"PING\r\n")
            return connection.recv(512).startswith(b"+PONG")

    @property
    def url(self) -> str:
        """What redis-py's ``Redis.from_url`` takes, the password in it."""
        secret = f":{self.password}@" if self.password is not None else ""
        end = f"?ssl_ca_certs={self.tls.ca}" if self.tls else ""
        return f"{'rediss' if self.tls else 'redis'}://{secret}{self.address}/0{end}"

    def how_to_connect(self) -> str:
        """redis-cli's options."""
        words = ["redis-cli", "-p", str(self.port)]
        if self.tls is not None:
            words += ["--tls", "--cacert", str(self.tls.ca)]
        if self.password is not None:
            words += ["--askpass"]
        return " ".join(words)
