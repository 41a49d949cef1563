"""Servers that run on Java: the right Java, their jars from Maven Central, and a fast start."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from tools.services.errors import ServiceError
from tools.services.packages import ensure, say
from tools.services.ports import free_ports
from tools.services.service import Service

ROOT = Path(__file__).resolve().parent.parent.parent
HOME = Path(os.environ.get("HEADRACE_SERVICES") or ROOT / ".data" / "services")
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
FETCH_SECONDS = 900.0
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>services</artifactId><version>1</version>
  <dependencies>{}</dependencies>
</project>
"""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A thing of Maven Central, with what it needs.

    Attributes:
        group: Its group.
        name: Its name.
        version: Its version.
        without: A needed thing that is left out, as group and name.
    """

    group: str
    name: str
    version: str
    without: tuple[str, str] | None = None

    def xml(self) -> str:
        """Write it as a dependency of a pom."""
        left_out = ""
        if self.without:
            group, name = self.without
            left_out = (
                f"<exclusions><exclusion><groupId>{group}</groupId>"
                f"<artifactId>{name}</artifactId></exclusion></exclusions>"
            )
        return (
            f"<dependency><groupId>{self.group}</groupId><artifactId>{self.name}</artifactId>"
            f"<version>{self.version}</version>{left_out}</dependency>"
        )


@cache
def version(java: str) -> str:
    """Ask a Java what it is: ``17.0.15`` for example; an empty text if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r'version "([^"]+)"', done.stderr)
    return found[1] if found else ""


def find_java(title: str, good: range) -> str:
    """Find a Java that a server runs on; Debian's is installed if there is none.

    Args:
        title: The server.
        good: The versions that will do.

    Raises:
        ServiceError: There is none, and it cannot be installed; the text names the package.
    """
    seen: dict[str, str] = {}

    def look() -> str | None:
        homes = [os.environ.get("JAVA_HOME", ""), *sorted(map(str, Path("/usr/lib/jvm").glob("java-1*")))]
        for java in [*(f"{home}/bin/java" for home in homes if home), shutil.which("java") or ""]:
            said = version(java) if java and Path(java).exists() else ""
            if said and int(re.split(r"[.\-+]", said)[0]) in good:
                return java
            if said:
                seen[java] = said
        return None

    found = look()
    if found is None and not seen:
        ensure("java")
        found = look()
    if found is None:
        there = ", ".join(f"{said} ({java})" for java, said in seen.items()) or "none"
        raise ServiceError(
            f"{title} needs Java {good[0]} to {good[-1]}, and this machine has {there}: install "
            "openjdk-17-jre-headless, or point JAVA_HOME to one"
        )
    return found


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Keep other processes from fetching the same thing meanwhile."""
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch_jars(title: str, artifacts: tuple[Artifact, ...]) -> Path:
    """Give the folder of a server's jars; they are fetched by Maven if they are not there.

    Raises:
        ServiceError: Maven is missing, or failed.
    """
    recipe = POM.format("".join(artifact.xml() for artifact in artifacts))
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:8]
    folder = HOME / "jars" / f"{artifacts[0].name}-{artifacts[0].version}-{digest}"
    if folder.exists():
        return folder
    with alone("fetch"):
        if folder.exists():  # somebody else has fetched it while this one waited
            return folder
        find_java(title, range(11, 100))  # what Maven itself runs on
        ensure("mvn")
        say(f"fetching {title} {artifacts[0].version} from Maven Central …")
        began = time.monotonic()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=HOME, prefix="fetch-") as scratch:
            (Path(scratch) / "pom.xml").write_text(recipe, "utf-8")
            _maven(title, Path(scratch))
            (Path(scratch) / "lib").rename(folder)
        megabytes = sum(jar.stat().st_size for jar in folder.iterdir()) / 1e6
        say(f"fetched {megabytes:.0f} MB in {time.monotonic() - began:.0f} s into {folder}")
    return folder


def _maven(title: str, folder: Path) -> None:
    """Let Maven copy what a pom names into ``lib``."""
    words = ["mvn", "-B", "-ntp", COPY, "-DincludeScope=runtime", "-DoutputDirectory=lib"]
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ServiceError(
            f"Maven has not fetched {title} in {FETCH_SECONDS:g} s: is Maven Central reachable?"
        ) from error
    if done.returncode != 0:
        wrong = [line for line in done.stdout.splitlines() if line.startswith("[ERROR]")][:6]
        raise ServiceError("\n".join([f"Maven could not fetch {title}:", *wrong]))


class JavaService(Service):
    """A server whose jars come from Maven Central."""

    artifacts: ClassVar[tuple[Artifact, ...]]
    java_versions: ClassVar[range]
    main: ClassVar[str]
    heap_megabytes: ClassVar[int] = 256
    learns: str | None = None
    """The file to write an archive of classes to, in the one run that learns which are needed."""

    @abstractmethod
    def java_options(self) -> list[str]:
        """Write the settings, and give what ``java`` needs beyond memory and class path."""

    @abstractmethod
    def arguments(self) -> list[str]:
        """Give what follows the main class."""

    def prepare(self) -> None:
        """Fetch jars, and make the archive of classes that lets later starts take half of the time."""
        self.java = find_java(self.title, self.java_versions)
        self.jars = fetch_jars(self.title, self.artifacts)
        (self.folder / "tmp").mkdir(exist_ok=True)
        if self.learns is None and not self._archive().exists():
            with alone(self.kind):
                if not self._archive().exists():
                    self._learn()

    def command(self) -> tuple[list[str], Mapping[str, str]]:
        """Give the command; its options are in a file, so that a list of processes stays readable."""
        return self.java_command(self.main, *self.arguments(), options=self.java_options()), {}

    def java_command(self, main: str, *arguments: str, options: list[str]) -> list[str]:
        """Give the command that runs a main class of the jars."""
        classes = ":".join(map(str, sorted(self.jars.glob("*.jar"))))
        words = [
            f"-Xms{self.heap_megabytes}m",
            f"-Xmx{self.heap_megabytes}m",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            "-XX:+ExitOnOutOfMemoryError",
            f"-Djava.io.tmpdir={self.folder / 'tmp'}",
            "-Djava.net.preferIPv4Stack=true",
            *options,
            "-cp",
            classes,
        ]
        if self.learns is not None:
            words.append(f"-XX:ArchiveClassesAtExit={self.learns}")
        elif self._archive().exists() and main == self.main:
            words += ["-Xshare:auto", f"-XX:SharedArchiveFile={self._archive()}"]
        file = self.folder / f"{main.rpartition('.')[2]}.options"
        quoted = ['"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in words]
        file.write_text("\n".join(quoted) + "\n", "utf-8")
        return [self.java, f"@{file}", main, *arguments]

    def _archive(self) -> Path:
        """Give the archive's file, one for each Java."""
        return self.jars.with_name(f"{self.jars.name}-java-{version(self.java)}.jsa")

    def _learn(self) -> None:
        """Start and stop a server of the same kind once, so that Java writes down what it has loaded."""
        say(f"preparing {self.title} for fast starts …")
        with tempfile.TemporaryDirectory(dir=HOME, prefix="learn-") as scratch:
            one = type(self)(Path(scratch) / "server", free_ports(len(self.well_known_ports)))
            one.learns = str(Path(scratch) / "classes.jsa")
            try:
                one.start()
                one.stop()
            finally:
                one.kill()
            if not Path(one.learns).exists():
                raise ServiceError(f"Java has not written its archive of classes. {one.last_lines()}")
            Path(one.learns).rename(self._archive())
