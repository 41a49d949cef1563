"""Starts, stops and shows Redis, Cassandra and Kafka on this machine: ``python -m tools.services --help``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.services.catalogue import KINDS
from tools.services.errors import ServiceError
from tools.services.java import HOME, alone
from tools.services.packages import say
from tools.services.ports import free_ports
from tools.services.service import Service

EXAMPLES = """examples:
  python -m tools.services start                         all three, on the ports that people expect
  python -m tools.services start redis kafka             some of them
  python -m tools.services start kafka --tls --password  encrypted, with a password made for it
  python -m tools.services start redis --any-port        where the usual port is taken
  python -m tools.services status                        what runs where, and how to connect
  python -m tools.services logs cassandra --lines 100    the end of a log
  python -m tools.services stop                          all that run; their data stays

What is missing is fetched: Debian's packages by apt-get (as root), jars from Maven Central. All of it lies in
.data/services, with the data; HEADRACE_SERVICES names another directory. Tests start servers of their own on
other ports, and never use these.

exit codes: 0 done; 1 something failed, or (status) nothing runs; 2 wrong usage.
"""
HEADINGS = ("server", "state", "host", "port", "pid", "how to connect")


def variant(name: str, *, tls: bool, password: bool) -> Path:
    """Give the folder of a server; each way to be connected to has data of its own."""
    return HOME / "-".join([name, *(["tls"] if tls else []), *(["password"] if password else [])])


def known(names: Sequence[str] = ()) -> list[Service]:
    """Give the servers that were started by this command, running or not."""
    found = []
    for name in names or KINDS:
        for number in range(4):
            service = KINDS[name].recall(variant(name, tls=bool(number & 1), password=bool(number & 2)))
            if service is not None:
                found.append(service)
    return found


def table(services: Sequence[Service]) -> str:
    """Lay out what runs where."""
    rows = [HEADINGS] + [
        (
            service.kind,
            "running" if service.running else "stopped",
            service.host,
            str(service.port),
            str(service.pid or "-"),
            service.how_to_connect(),
        )
        for service in services
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    secrets = [
        f"{service.kind}: user {service.user}, password in {service.folder / 'password'}"
        for service in services
        if service.password is not None
    ] + [f"{service.kind}: trust {service.ca_file}" for service in services if service.ca_file is not None]
    return "\n".join(line.rstrip() for line in [*lines, *secrets])


def start(names: Sequence[str], *, tls: bool, password: bool, any_port: bool) -> int:
    """Start what does not run, wait until all are ready, and show them."""
    launched: list[Service] = []
    services: list[Service] = []
    try:
        for name in names or KINDS:
            folder = variant(name, tls=tls, password=password)
            if any(one.running and one.folder != folder.resolve() for one in known([name])):
                raise ServiceError(f"{name} runs already in another way (tls, password): stop it first")
            service = KINDS[name].recall(folder)
            if service is None or not service.running:
                ports = KINDS[name].well_known_ports
                ports = free_ports(len(ports)) if any_port else ports
                service = KINDS[name](folder, ports, tls=tls, password=password, tied=False)
            services.append(service)
            if not service.running:
                say(f"starting {service.title} …")
                service.launch()
                service.remember()
                launched.append(service)
        for service in launched:
            service.wait_until_ready()
            say(f"{service.title} is ready")
    except BaseException:
        for service in launched:
            service.kill()
        raise
    print(table(services))
    return 0


def fetch(names: Sequence[str]) -> int:
    """Make sure that nothing is missing for servers of these kinds."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in names or KINDS:
            KINDS[name](Path(scratch) / name, KINDS[name].well_known_ports).prepare()
    return 0


def stop(names: Sequence[str]) -> int:
    """Stop what runs."""
    for service in known(names):
        if service.running:
            say(f"stopping {service.title} (process {service.pid}) …")
            service.stop()
    return 0


def status(names: Sequence[str]) -> int:
    """Show what was started; 1 if nothing of it runs."""
    services = known(names)
    print(table(services) if services else "nothing was started: python -m tools.services start")
    return 0 if services and any(service.running for service in services) else 1


def logs(name: str, lines: int) -> int:
    """Print the end of a log: of the one that runs, or of the one that wrote last."""
    services = [service for service in known([name]) if service.log.exists()]
    if not services:
        raise ServiceError(f"{name} was never started, so it has no log")
    newest = max(services, key=lambda service: (service.running, service.log.stat().st_mtime))
    print(newest.last_lines(lines))
    return 0


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    top = argparse.ArgumentParser(
        prog="python -m tools.services",
        description="Real servers on this machine, for tests and for trying out.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    one = verbs.add_parser("start", help="fetch what is missing, start, wait until ready, show")
    one.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(KINDS)}; all if none is named")
    one.add_argument("--tls", action="store_true", help="encrypt connections, with certificates made for it")
    one.add_argument("--password", action="store_true", help="ask for a password, made for it")
    one.add_argument("--any-port", action="store_true", help="take free ports instead of the usual ones")
    for verb, line in (
        ("fetch", "only fetch what is missing, so that starts are fast"),
        ("stop", "stop what runs; the data stays"),
        ("status", "show what runs where"),
    ):
        one = verbs.add_parser(verb, help=line)
        one.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(KINDS)}; all if none is named")
    one = verbs.add_parser("logs", help="print the end of a log")
    one.add_argument("names", nargs=1, metavar="NAME", help=", ".join(KINDS))
    one.add_argument("--lines", type=int, default=50, metavar="N", help="how many lines (50)")
    return top


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says.

    Returns:
        The exit code.
    """
    top = parser()
    words = top.parse_args(arguments)
    unknown = [name for name in words.names if name not in KINDS]
    if unknown:
        top.error(f"there is no server {', '.join(unknown)}: there are {', '.join(KINDS)}")
    try:
        if words.verb == "status":
            return status(words.names)
        if words.verb == "logs":
            return logs(words.names[0], words.lines)
        with alone("command"):  # two commands at once would start two
            if words.verb == "fetch":
                return fetch(words.names)
            if words.verb == "stop":
                return stop(words.names)
            return start(words.names, tls=words.tls, password=words.password, any_port=words.any_port)
    except ServiceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: what was being started is stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
